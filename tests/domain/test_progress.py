"""Places in the feed of events as clients carry them about."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.progress import LARGEST_NUMBER, FeedPosition
from interlock.errors import Invalid

numbers = st.integers(0, LARGEST_NUMBER)
ID = "0193a1b2-ffff-7fff-8fff-ffffffffffff"


@given(numbers, numbers, st.uuids(), numbers)
def test_a_feed_position_round_trips_through_its_text(epoch: int, commit_seq: int, job_id: object, seq: int) -> None:
    place = FeedPosition(epoch, commit_seq, str(job_id), seq)
    assert FeedPosition.parse(str(place)) == place


@pytest.mark.parametrize(
    "text",
    ["", ".", "...", "0.0.0", f"0.0.{ID}", f"0.0.{ID}.0.0", f"-1.0.{ID}.0", f"0.{2**63}.{ID}.0", f"0.٣.{ID}.0",
     f"0. 1.{ID}.0", f"0.1_0.{ID}.0", "0.0.nobody.0", f"0.0.{ID}.{'9' * 5000}", "\x00", "\ud800"],
)  # fmt: skip
def test_an_invalid_feed_position_is_rejected(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        FeedPosition.parse(text)
    assert caught.value.pointer == "/cursor"


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        place = FeedPosition.parse(text)
    except Invalid:
        return
    assert FeedPosition.parse(str(place)) == place
