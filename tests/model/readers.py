"""Readers of the feed of all events: from any start, a reader gets every later event, once and in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from interlock.domain.progress import SMALLEST_ID, EventRow, FeedEvent, FeedPosition

START: Final = FeedPosition(0, 0, SMALLEST_ID, 0)


class Reader:
    """One who remembers a place, and what was read up to it."""

    def __init__(
        self, place: FeedPosition = START, read_before: Mapping[str, Sequence[EventRow]] | None = None
    ) -> None:
        self.place = place
        self.read: dict[str, list[EventRow]] = {}
        self._read_before = {job_id: len(reported) for job_id, reported in (read_before or {}).items()}

    def go_on(self, page: Sequence[FeedEvent]) -> None:
        for place, event in page:
            assert place > self.place, "the feed goes back"
            self.place = place
            known = self.read.setdefault(event.job_id, [])
            if known:
                assert event.seq == known[-1].seq + 1, f"after {known[-1].seq} came {event.seq}"
            else:
                # Of the events before its start a reader may see the last, but of the later ones all.
                assert event.seq <= self._read_before.get(event.job_id, 0) + 1, f"begun with {event.seq}"
            known.append(event)

    def has_all(self, reported: Mapping[str, Sequence[EventRow]]) -> bool:
        """Whether all events since its start were read."""
        return all(
            self.read.get(job_id, [])[-1:] == rows[-1:]
            for job_id, rows in reported.items()
            if len(rows) > self._read_before.get(job_id, 0)
        )

    def check(self, reported: Mapping[str, Sequence[EventRow]]) -> None:
        """The events read are the events emitted."""
        for job_id, rows in self.read.items():
            first = rows[0].seq - 1
            assert rows == reported[job_id][first : first + len(rows)]
