"""The guard over JSON text: what it keeps, what it refuses and where it says the trouble is."""

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from interlock.domain.text import MAX_DEPTH, check, is_visible_name, mend, mend_text
from interlock.errors import Error, Invalid, Malformed, TooLarge
from tests.support.json_oracle import Oracle

LIMIT = 1 << 22
HIGH, LOW = "\ud83d", "\ude00"

fast = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def checked(text: str | bytes) -> str:
    return check(text, what="payload", limit=LIMIT)


def mended(text: str | bytes) -> tuple[str, bool]:
    return mend(text, what="payload", limit=LIMIT)


GUARDS: list[Callable[[str], object]] = [checked, mended]


def refusal(guard: Callable[[str], object], text: str) -> tuple[type[Error], str] | None:
    try:
        guard(text)
    except Error as error:
        return type(error), getattr(error, "pointer", "")
    return None


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=15,
)
odd_strings = st.text(
    st.sampled_from(["a", "\\", '"', "\ud800", HIGH, LOW, "\U0001f600", "\0", "u", "d", "8", "~", "/", "\ufffd"]),
    max_size=6,
)
odd_values = st.recursive(
    st.integers(-(2**64), 2**64) | st.floats() | odd_strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_strings, inner, max_size=4),
    max_leaves=12,
)
odd_texts = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    odd_values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
FRAGMENTS = (
    *'{}[],:"\\ \n-.0',
    *("1", "12", "01", "1.5", "-0", "1e5", "1e400", "-1E+309", "9223372036854775808", "-9223372036854775808"),
    *("true", "null", "NaN", "-Infinity", "tru", '"a"', '"a":', '"\\u0061":', '{"a":1,', '"b":[', '"~/"'),
    *("\\n", "\\u", "\\ud800", "\\uDC00", "\\ud83d\\ude00", "\\\\ud800", "\\u12"),
    *("\ud800", "\u00e9", "\ufeff", "\x00"),
)
soups = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
# Well-formed apart from its leaves, with keys that repeat more often than not.
strings = st.lists(
    st.sampled_from(["a", "\\u0061", "\\\\", '\\"', "\\ud83d", "\\uDE00", HIGH, LOW, "[", "}", "~", "\\/"]),
    max_size=3,
).map(lambda parts: '"' + "".join(parts) + '"')
structured = st.recursive(
    strings | st.sampled_from(["1", " true ", "-1e400", "99999999999999999999", "NaN", "0.5", "[ ]", "{\n}"]),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(strings, inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{key} :{value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=10,
)
any_text = st.text(st.characters(codec=None))


# check


@fast
@given(values, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", " ", "\n\t\r "]))
def test_dumped_values_are_accepted_and_returned_unchanged(
    value: object, ascii_only: bool, indent: int | None, space: str
) -> None:
    text = space + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + space
    assert checked(text) == text
    assert checked(text.encode()) == text
    assert mended(text) == (text, False)


@fast
@given(soups | odd_texts | structured)
@example('{"a":1,"\\u0061":1e400}')
@example('["\\ud800",NaN]')
@example("\ufeff1")
def test_verdict_and_place_agree_with_a_slow_reader(text: str) -> None:
    assert refusal(checked, text) == Oracle(text).verdict()
    assert refusal(mended, text) == Oracle(text).verdict(mending=True)


@fast
@given(any_text | soups)
@example("[" * 5000)
@example('{"a":' * 5000)
@example("1" * 5000)
def test_text_of_any_kind_raises_nothing_but_known_errors(text: str) -> None:
    for guard in GUARDS:
        refusal(guard, text)


@fast
@given(st.binary() | soups.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_of_any_kind_raise_nothing_but_known_errors(data: bytes) -> None:
    for guard in (checked, mended):
        with suppress(Error):
            guard(data)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "null",
        '""',
        ' {"a" : 1}\r\n\t ',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
        '"\\uD83D\\uDE00"',
        '"\\\\ud800"',
        '"\\\\\\\\udfff"',
        '"\\\\\\ud83d\\ude00"',
        '"\U0001f600\u00e9"',
        "9223372036854775807",
        "-9223372036854775808",
        "-0",
        "1.7976931348623157e308",
        "1e-400",
        "0." + "1" * 5000,
        '{"a":{"a":1},"b":[{"a":1},{"a":1}]}',
        '{"a":1,"A":2,"":3}',
        '["[[{{", "\\"[", "\\\\"]' + " " * 200,
    ],
)
def test_strict_json_is_kept_byte_for_byte(text: str) -> None:
    assert checked(text) == text
    assert checked(text.encode()) == text
    assert mended(text) == (text, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        '{"a":1,}',
        "{'a':1}",
        "{a:1}",
        "// no\n1",
        "1 2",
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
        "tru",
        "True",
        '"\n"',
        '"\x00"',
        '"\\x"',
        '"\\u12"',
        '"\\ud8"',
        '"a',
        '"\\"',
        "\ufeff{}",
        "\u00a01",
        "\ud800",
        "\u0661",
        "[" * 65,
    ],
)
@pytest.mark.parametrize("guard", GUARDS)
def test_text_that_is_not_json_is_malformed(guard: Callable[[str], object], text: str) -> None:
    assert refusal(guard, text) == (Malformed, "")


@pytest.mark.parametrize(
    ("text", "kind", "pointer"),
    [
        ('{"a":1,"a":2}', Malformed, "/a"),
        ('{"a":1,"\\u0061":2}', Malformed, "/a"),
        ('{"b":[0,{"x":1,"y":2,"x":3}]}', Malformed, "/b/1/x"),
        ('{"a/b~c":{"":1,"":2}}', Malformed, "/a~1b~0c/"),
        ("NaN", Malformed, ""),
        ("[1,-Infinity]", Malformed, "/1"),
        ('{"a":[Infinity]}', Malformed, "/a/0"),
        ("9223372036854775808", Invalid, ""),
        ("[-9223372036854775809]", Invalid, "/0"),
        ('{"a":{"b":1e400}}', Invalid, "/a/b"),
        ("[[],[1],[1,1e131073]]", Invalid, "/2/1"),
        ("[0,-1e400]", Invalid, "/1"),
        ('{"n":' + "9" * 5000 + "}", Invalid, "/n"),
        ("-" + "9" * 5000, Invalid, ""),
        ("9" * 400 + ".5", Invalid, ""),
        ('{"s]":["}\\"",{"n":1e999}]}', Invalid, "/s]/1/n"),
    ],
)
@pytest.mark.parametrize("guard", GUARDS)
def test_offences_are_named_with_their_place(
    guard: Callable[[str], object], text: str, kind: type[Error], pointer: str
) -> None:
    assert refusal(guard, text) == (kind, pointer)
    with pytest.raises(kind, match=r"^payload ") as caught:
        guard(text)
    assert (pointer or "at the top") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('"\\ud800"', ""),
        ('"\\uDFFF"', ""),
        ('["\\ude00\\ud83d"]', "/0"),
        ('["ok","\\ud83d\\ud83d\\ude00"]', "/1"),
        ('["\\ud83d\\ude00\\ude00"]', "/0"),
        ('["\\ud83d\\\\ude00"]', "/0"),
        ('["\\\\ud83d\\ude00"]', "/0"),
        ('{"a":"\ud800"}', "/a"),
        ('{"k\\ud800":1}', "/k\ufffd"),
        ('{"k\udfff":[1]}', "/k\ufffd"),
        ('"\\ud83d' + LOW + '"', ""),
        ('"' + HIGH + '\\ude00"', ""),
        ('"' + HIGH + LOW + '"', ""),
    ],
)
def test_lone_surrogates_are_invalid(text: str, pointer: str) -> None:
    assert refusal(checked, text) == (Invalid, pointer)


def test_syntax_errors_come_before_any_other_offence() -> None:
    assert refusal(checked, '[1e400,"\\ud800",') == (Malformed, "")


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b"\xef\xbb\xbf{}", b"{\x00}\x00"]
)
def test_bytes_that_are_not_plain_utf8_are_malformed(data: bytes) -> None:
    for guard in (checked, mended):
        with pytest.raises(Malformed):
            guard(data)


def test_a_byte_order_mark_is_called_by_its_name() -> None:
    for text in ("\ufeff{}", b"\xef\xbb\xbf{}"):
        with pytest.raises(Malformed, match="byte order mark"):
            checked(text)


@pytest.mark.parametrize("text", ['"abc"', '"\u00e9\u20ac"', '"\U0001f600"', '"\ud800"'])
def test_size_is_counted_in_utf8_bytes(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert mend(text, what="result", limit=size)
    for guard in (check, mend):
        with pytest.raises(TooLarge):
            guard(text, what="result", limit=size - 1)
        with pytest.raises(TooLarge):
            guard(text.encode("utf-8", "surrogatepass"), what="result", limit=size - 1)


def nest(depth: int) -> list[str]:
    pairs, rest = divmod(depth, 2)
    return [
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
        '[{"]":' * pairs + ("[1]" if rest else "1") + "}]" * pairs,
        '["\\\\","\\"]",' + "[" * (depth - 1) + '"]]]"' + "]" * depth,
        "[" + "[],{}," * 300 + "[" * (depth - 1) + "]" * depth,
    ]


@pytest.mark.parametrize("index", range(5))
def test_depth_64_is_accepted_and_65_is_malformed(index: int) -> None:
    text = nest(MAX_DEPTH)[index]
    assert json.loads(text)
    assert checked(text) == text
    deeper = nest(MAX_DEPTH + 1)[index]
    assert json.loads(deeper)
    assert refusal(checked, deeper) == (Malformed, "")
    assert refusal(mended, deeper) == (Malformed, "")


@pytest.mark.parametrize("text", ['"' + "[" * 1000 + '"', '{"' + "{" * 1000 + '":"\\"' + "[" * 1000 + '\\\\"}'])
def test_brackets_inside_strings_do_not_count_as_depth(text: str) -> None:
    assert checked(text) == text


def test_pointer_of_long_keys_stops_at_an_enclosing_value() -> None:
    assert refusal(checked, '{"a":{"' + "k" * 5000 + '":1e400}}') == (Invalid, "/a")


def test_control_characters_of_a_key_stay_out_of_the_message() -> None:
    with pytest.raises(Malformed) as caught:
        checked('{"\\u001b[2J\\n":NaN}')
    assert str(caught.value).isprintable()


MEGA = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "[" * MEGA,
        '{"a":' * (MEGA // 5),
        '"' + "\\" * MEGA,
        "[" * 70 + "\\" * MEGA,
        '"' + "\\\\" * (MEGA // 2) + '\\ud800"',
        "[" * 70 + '"' + '\\"' * (MEGA // 2),
        '"' * MEGA,
        '"' + "\\ud800" * (MEGA // 6) + '"',
        '"' + "\\ud83d\\ude00" * (MEGA // 12) + '\\ude00"',
        '"' + "\ud800" * (MEGA // 3) + '"',
        "1" * MEGA,
        "1" * MEGA + ".0",
        "1e" + "9" * MEGA,
        "[" + "1," * (MEGA // 4) + "1e400]",
        '{"' + "k" * (MEGA // 2) + '":1,"' + "k" * (MEGA // 2) + '":2}',
        ('{"' + "k" * (MEGA // 64) + '":') * 63 + "1e400" + "}" * 63,
        " " * MEGA,
        "[" + " " * MEGA + "1e400]",
    ],
    ids=range(18),
)
def test_hostile_megabytes_are_judged(text: str) -> None:
    """A pass that is not linear would make this test hang."""
    verdicts = [refusal(guard, text) for guard in GUARDS]
    assert verdicts[0] is not None


# mend


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"\\ud800"', '"\\ufffd"'),
        ('"\\uDFFFx"', '"\\ufffdx"'),
        ('"\ud800"', '"\ufffd"'),
        ('"\\ud83d\\ud83d\\ude00\\ude00"', '"\\ufffd\\ud83d\\ude00\\ufffd"'),
        ('"\\\\\\ud800\\\\ud800"', '"\\\\\\ufffd\\\\ud800"'),
        ('"\\"\\ud800\\""', '"\\"\\ufffd\\""'),
        ('"\\\\ud83d\\ude00"', '"\\\\ud83d\\ufffd"'),
        ('"' + HIGH + '\\ude00"', '"\ufffd\\ufffd"'),
        ('"' + HIGH + LOW + '"', '"\ufffd\ufffd"'),
        (' {"\\ud800" : 1.0e0}\n', ' {"\\ufffd" : 1.0e0}\n'),
    ],
)
def test_mending_replaces_lone_surrogates_and_nothing_else(text: str, expected: str) -> None:
    assert mended(text) == (expected, True)


def scrub(value: object) -> object:
    """Replace surrogates in every string of a value."""
    if isinstance(value, str):
        return "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in value)
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    return value


def keys_stay_apart(value: object) -> bool:
    if isinstance(value, list):
        return all(map(keys_stay_apart, value))
    if isinstance(value, dict):
        return len({scrub(key) for key in value}) == len(value) and all(map(keys_stay_apart, value.values()))
    return True


@fast
@given(odd_texts | structured)
def test_mended_text_means_the_same_with_surrogates_replaced(text: str) -> None:
    if refusal(mended, text):
        return
    result, flag = mended(text)
    sent = json.loads(text)
    assert flag == (Oracle(text).verdict() is not None)
    assert len(result.encode()) == len(text.encode("utf-8", "surrogatepass"))
    if keys_stay_apart(sent):
        assert mended(result) == (result, False)
        assert json.loads(result) == scrub(sent)
        assert checked(result) == result


def test_keys_that_mending_makes_equal_are_all_kept() -> None:
    assert mended('{"\\ud800":1,"\\udfff":2,"\\ufffd":3}') == ('{"\\ufffd":1,"\\ufffd":2,"\\ufffd":3}', True)


def test_keys_equal_as_sent_are_still_refused_when_mending() -> None:
    assert refusal(mended, '{"\\ud800":1,"\\uD800":2}') == (Malformed, "/\ufffd")


@fast
@given(any_text)
@example(HIGH + LOW)
@example("\\ud800")
def test_mended_plain_strings_encode_and_keep_every_other_character(value: str) -> None:
    result, flag = mend_text(value)
    assert result == scrub(value)
    assert flag == (result != value)
    assert result.encode().decode() == result


# names


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
    ],
)
def test_names_with_something_to_see_are_taken(name: str) -> None:
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
    ],
)
def test_names_that_are_blank_broken_or_padded_are_not_taken(name: str) -> None:
    assert not is_visible_name(name)


def test_the_limit_of_a_name_counts_characters() -> None:
    assert is_visible_name("\u00e9" * 5, limit=5)
    assert not is_visible_name("\u00e9" * 6, limit=5)
