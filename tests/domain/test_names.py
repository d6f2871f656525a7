"""Names: something to see, no padding, and a limit in characters."""

import pytest

from interlock.domain.json_text import is_visible_name


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "two words",
        "mail.send-v2/fast",
        "\u00e9t\u00e9",
        "\u65e5\u672c\u8a9e",
        "\U0001f600",
        "\U0001f469\u200d\U0001f4bb",
        "x" * 200,
        "\U0001f600" * 200,
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "...",
        "./a",
    ],
)
def test_visible_names_are_accepted(name: str) -> None:
    assert is_visible_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        " a",
        "a ",
        "a\n",
        "\u00a0a",
        "a\u3000",
        "a\tb",
        "a\0b",
        "a\x7fb",
        "\u00e9\x85\u00e9",
        "a\u2028b",
        "a\u2029b",
        "a\ud800",
        "\u200b",
        "\u200b\u200d",
        "\u200b \u200b",
        "\ufeff",
        "\ue000",
        "\U000e0001",
        "\uffff",
        "x" * 201,
        ".",
        "..",
        *(f"a{deceives}b" for deceives in "\u00ad\u061c\u180e\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff"),
    ],
)
def test_blank_broken_or_padded_names_are_rejected(name: str) -> None:
    assert not is_visible_name(name)


def test_the_limit_of_a_name_counts_characters() -> None:
    assert is_visible_name("\u00e9" * 5, limit=5)
    assert not is_visible_name("\u00e9" * 6, limit=5)
