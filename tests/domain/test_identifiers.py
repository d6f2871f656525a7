"""The ends of IDs, as people copy them."""

from __future__ import annotations

import pytest

from interlock.domain.identifiers import id_end, is_shortened

ID = "01a1ec09-aa9b-748f-8006-4b38785d8d72"


@pytest.mark.parametrize("digits", range(8, 33))
def test_the_end_of_an_id_is_found_with_and_without_dashes(digits: int) -> None:
    bare = ID.replace("-", "")[-digits:]
    end = id_end(bare.upper())
    assert end is not None
    assert ID.endswith(end)
    assert end.replace("-", "") == bare
    assert id_end(f" {end} ") == end
    assert is_shortened(bare) == (digits < 32)


@pytest.mark.parametrize("text", ["", ID[-7:], "nonsense", f"0{ID}", "4b38785g", "%%%%%%%%", "-" * 12])
def test_text_that_is_too_short_or_not_part_of_an_id_is_not_an_id_suffix(text: str) -> None:
    assert id_end(text) is None
    assert not is_shortened(text)
