"""Searches, and reads of history, progress, leases, job trees and prunes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Final

from interlock.domain.job import HistoryRow, LeaseState, TextSearch
from interlock.domain.operations import Child, Prune
from interlock.domain.progress import SMALLEST_ID, EventRow, FeedEvent, FeedPosition, StepRow
from interlock.storage.dialect import Database, columns, reader, statements

SQL: Final = statements(
    "reads",
    step=columns(StepRow, "s."),
    event=columns(EventRow, "e."),
    prune=columns(Prune, "p."),
    transition=", ".join(f"h.{name}" for name in HistoryRow._fields[1:]),
)
ALWAYS: Final = -1  # before every event
MAX_ROWS: Final = (1 << 31) - 1
_step: Final = reader(StepRow)
_event: Final = reader(EventRow)
_transition: Final = reader(HistoryRow)
_child: Final = reader(Child)
_lease_state: Final = reader(LeaseState)
_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)


class Reads:
    """The methods of a store that only read; see the contract."""

    _database: Database

    async def history(self, tenant: str, job_id: str, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        most = MAX_ROWS if limit is None else limit
        rows = await self._rows(tenant, "history", id=job_id, after=after, limit=most)
        return [*map(_transition, rows)]

    async def steps(self, tenant: str, job_ids: Sequence[str], *, after: int = 0, limit: int) -> list[list[StepRow]]:
        found: dict[str, list[StepRow]] = defaultdict(list)
        for row in await self._rows(tenant, "steps", ids=[*dict.fromkeys(job_ids)], after=after, limit=limit):
            step = _step(row)
            found[step.job_id].append(step)
        return [sorted(found[id], key=lambda step: step.seq) for id in job_ids]

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int
    ) -> list[EventRow]:
        rows = await self._rows(
            tenant, "events", id=job_id, after=after, since=ALWAYS if since is None else since, limit=limit
        )
        return [*map(_event, rows)]

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int) -> list[FeedEvent]:
        found = []
        for epoch, commit_seq, *row in await self._rows(tenant, "feed", **after._asdict(), limit=limit):
            event = _event(row)
            found.append(FeedEvent(FeedPosition(epoch, commit_seq, event.job_id, event.seq), event))
        return found

    async def feed_end(self, tenant: str) -> FeedPosition:
        ((epoch, commit_seq),) = await self._rows(tenant, "feed_end")
        return FeedPosition(epoch, commit_seq, SMALLEST_ID, 0)

    async def lease_states(self, tenant: str, job_ids: Sequence[str]) -> list[LeaseState | None]:
        states = {row[0]: _lease_state(row) for row in await self._rows(tenant, "lease_states", ids=list(job_ids))}
        return [states.get(id) for id in job_ids]

    async def has_ended(self, tenant: str, job_id: str) -> bool | None:
        rows = await self._rows(tenant, "has_ended", id=job_id)
        return bool(rows[0][0]) if rows else None

    async def search(self, tenant: str, text: str, id_end: str | None, limit: int) -> list[str]:
        return [id for (id,) in await self._rows(tenant, "search", text=text, id_end=id_end, limit=limit)]

    async def search_text(self, tenant: str, wanted: TextSearch) -> list[str]:
        lowered = {"text": wanted.text.translate(_LOWER), "json": wanted.json.translate(_LOWER)}
        return [id for (id,) in await self._rows(tenant, "search_text", **wanted._asdict() | lowered)]

    async def parents(self, tenant: str, job_ids: Sequence[str]) -> set[str]:
        return {id for (id,) in await self._rows(tenant, "parents", ids=list(job_ids))}

    async def retrying_after(self, tenant: str, text: str, *, limit: int) -> list[str]:
        return [id for (id,) in await self._rows(tenant, "retrying_after", text=text, limit=limit)]

    async def children_after(
        self, tenant: str, parents: Sequence[str], after: tuple[str, int] | None, *, limit: int
    ) -> list[Child]:
        parent, seq = after or (SMALLEST_ID, -1)
        rows = await self._rows(tenant, "children_after", parents=list(parents), parent=parent, seq=seq, limit=limit)
        return sorted(map(_child, rows), key=lambda child: (child.parent_id, child.seq))

    async def prunes(self, tenant: str, *, limit: int = 50) -> list[Prune]:
        return [*map(Prune._make, await self._rows(tenant, "prunes", limit=limit))]

    async def _rows(self, tenant: str, statement: str, **values: Any) -> list[Any]:
        return await self._database.rows(tenant, SQL[statement], **values)
