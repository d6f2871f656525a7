"""Job lists on SQLite, newest first, read from the index that visits the fewest rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from interlock.domain.job import Filter, Job
from interlock.domain.lifecycle import Status
from interlock.domain.retry import SECOND
from interlock.storage.sql_files import load
from interlock.storage.sqlite import job_blocks
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.job_row import to_job

_SQL: Final = load("interlock.storage.sqlite", "list_jobs.sql")
_SET_BACK: Final = frozenset({Status.RETRY, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED})
_DUE_SOME_TIME: Final = frozenset({Status.QUEUED, Status.RETRY})
_BEYOND_ALL: Final = 1 << 62
FEW: Final = 5_000  # up to this many rows, sorting them is faster than a scan of all jobs
FEW_BASES: Final = 50

_EVERYWHERE: Final = "c.seq < :before_seq"
_NOT_YET_NOTED: Final = "c.seq > :noted_to AND c.seq < :before_seq"
_BETWEEN: Final = "c.seq BETWEEN :first AND :last"
# The unary plus keeps SQLite from using before_seq as the upper bound of the index range.
_IN_BLOCK: Final = "c.seq BETWEEN s.first_seq AND s.last_seq AND +c.seq < :before_seq"


def find(connection: Connection, tenant: str, filter: Filter) -> list[Job]:
    """Return the newest jobs that match the filter."""
    finder = _Finder(connection, tenant, filter)
    found = {job.seq: job for job in finder.jobs()}
    return [found[seq] for seq in sorted(found, reverse=True)[: filter.limit]]


class _Finder:
    def __init__(self, connection: Connection, tenant: str, filter: Filter) -> None:
        f = filter
        self._connection = connection
        self._filter = f
        stale = None if f.stale_seconds is None else connection.read_clock() - round(f.stale_seconds * SECOND)
        self._facts: dict[str, Any] = f._asdict() | {
            "tenant": tenant,
            "agent_kind": f.agent and f.agent[0],
            "agent_id": f.agent and f.agent[1],
            "stale_before": stale,
            "before_seq": f.before_seq if f.before_seq is not None else _BEYOND_ALL,
        }
        for n, tag in enumerate(f.tags):
            self._facts |= {f"tag{n}": tag, f"tag{n}_as_kept": json.dumps(tag)}

    def jobs(self) -> Iterator[Job]:
        """Yield all candidates for the page, unordered."""
        f, statuses = self._filter, {*self._filter.statuses}
        if f.worker is not None or f.stale_seconds is not None:
            yield from self._read("leased", _EVERYWHERE)
        elif f.parent_id is not None:
            yield from self._read("of_parent", _EVERYWHERE)
        elif not (parts := self._parts_by_status(statuses)):
            yield from self._walk()
        else:
            for part in parts:
                yield from part

    def _parts_by_status(self, statuses: set[Status]) -> list[Iterator[Job]]:
        """Return one read per status that has its own index; empty if a scan is cheaper."""
        parts: list[Iterator[Job]] = []
        if Status.QUEUED in statuses:
            due = self._rows(_SQL["due_some_time"], most=FEW + 1)
            if len(due) > FEW:
                return []
            seqs = sorted((seq for (seq,) in due), reverse=True)
            parts.append(self._read("named", "c.value < :before_seq", seqs=json.dumps(seqs)))
            statuses = statuses - _DUE_SOME_TIME
        unsuccessful = sorted(statuses & _SET_BACK)
        if unsuccessful:
            if self._filter.agent is not None and self._how_many(unsuccessful) > FEW:
                return []
            parts.extend(self._set_back(status) for status in unsuccessful)
        if Status.RUNNING in statuses:
            parts.append(self._read("leased", _EVERYWHERE))
        if Status.WAITING_FOR_APPROVAL in statuses:
            parts.append(self._read("waiting", _EVERYWHERE))
        if Status.SUCCEEDED in statuses:
            parts.append(self._succeeded())
        return parts

    def _succeeded(self) -> Iterator[Job]:
        """Scan from the newest succeeded job: the jobs after it mostly still wait."""
        ((last,),) = self._rows(_SQL["last_succeeded"])
        self._facts["before_seq"] = min(self._facts["before_seq"], last + 1)
        yield from self._walk()

    def _how_many(self, statuses: list[Status]) -> int:
        ((n,),) = self._rows(_SQL["how_many_unsuccessful"].replace("{statuses}", _quoted(statuses)), most=FEW + 1)
        return int(n)

    def _set_back(self, status: Status) -> Iterator[Job]:
        f = self._filter
        if f.type is not None and not f.tags:
            bases = self._rows(_SQL["bases"], limit=FEW_BASES + 1)
            if len(bases) <= FEW_BASES:
                for (base,) in bases:
                    yield from self._narrowed("unsuccessful_of_base", [], status=status, base=base)
                return
        yield from self._narrowed("unsuccessful", self._words(), status=status)

    def _walk(self) -> Iterator[Job]:
        if self._filter.agent is not None:
            return self._narrowed("of_agent", self._words())
        by_type = self._filter.type is not None and not self._filter.tags
        return self._narrowed("newest_of_type" if by_type else "newest", self._words())

    def _words(self) -> list[tuple[str, str]]:
        """Return the block index terms of the filter, as (kind, SQL parameter)."""
        type = [] if self._filter.type is None else [("type", ":type")]
        return [("tag", f":tag{n}") for n in range(len(self._filter.tags))] + type

    def _narrowed(self, name: str, words: list[tuple[str, str]], **more: Any) -> Iterator[Job]:
        """Read jobs without a block first, then only the job blocks that contain all terms."""
        f, tenant = self._filter, self._facts["tenant"]
        if not words and f.created_after is None and f.created_before is None:
            yield from self._read(name, _EVERYWHERE, **more)
            return
        noted_to = job_blocks.noted_to(self._connection, tenant)
        count = 0
        for job in self._read(name, _NOT_YET_NOTED, noted_to=noted_to, **more):
            count += 1
            yield job
        if count == f.limit or not noted_to:
            return
        if words:
            yield from self._read(name, _IN_BLOCK, words, **more)
        elif between := job_blocks.between(self._connection, tenant, f.created_after, f.created_before):
            first, last = between[0], min(between[1], self._facts["before_seq"] - 1)
            yield from self._read(name, _BETWEEN, first=first, last=last, **more)

    def _read(self, name: str, within: str, words: Sequence[tuple[str, str]] = (), **more: Any) -> Iterator[Job]:
        text, f = _SQL["page_of_jobs"].replace("{found}", _SQL[name]), self._filter
        if words:
            within = f"{_has_first(words)} AND {_of_that_time(f)} AND {within}"
        for mark, meaning in {
            "{job_blocks}": _blocks_with(words) if words else "",
            "{by_block}": "w.first_seq DESC, " if words else "",
            "{within}": within,
            "{tagged}": " AND ".join(f"instr(c.tags, :tag{n}_as_kept)" for n in range(len(f.tags))) or "true",
            "{fits}": self._fits(),
        }.items():
            text = text.replace(mark, meaning)
        return map(to_job, self._rows(text, **more))

    def _rows(self, text: str, **more: Any) -> list[tuple[Any, ...]]:
        return self._connection.rows(text, self._facts | more)

    def _fits(self) -> str:
        """Return the conditions of the filter, and only those: each one costs time for every scanned job."""
        f = self._filter
        conditions = {
            f"v.status IN ({_quoted(f.statuses)})": f.statuses,
            "v.type = :type": f.type is not None,
            "v.worker = :worker": f.worker is not None,
            "v.agent_kind = :agent_kind AND v.agent_id = :agent_id": f.agent is not None,
            "v.status = 'running' AND coalesce(v.heartbeat_at, v.run_started_at) <= :stale_before": (
                f.stale_seconds is not None
            ),
            "v.parent_id = :parent_id": f.parent_id is not None,
            "v.created_at >= :created_after": f.created_after is not None,
            "v.created_at < :created_before": f.created_before is not None,
        }
        tags = [f":tag{n} IN (SELECT value FROM json_each(v.tags))" for n in range(len(f.tags))]
        return " AND ".join([text for text, asked in conditions.items() if asked] + tags) or "true"


def _quoted(statuses: Sequence[Status]) -> str:
    return ", ".join(f"'{status}'" for status in statuses)


def _blocks_with(words: Sequence[tuple[str, str]]) -> str:
    """Return the joins that select job blocks with all terms, starting from the first term."""
    others = "".join(
        f"CROSS JOIN job_block_term w{n} ON w{n}.tenant = :tenant AND w{n}.kind = '{kind}' AND w{n}.word = {word}"
        f" AND w{n}.first_seq = w.first_seq "
        for n, (kind, word) in enumerate(words[1:])
    )
    job_block = "CROSS JOIN job_block s ON s.tenant = :tenant AND s.first_seq = w.first_seq"
    return f"job_block_term w {others}{job_block} CROSS JOIN "


def _has_first(words: Sequence[tuple[str, str]]) -> str:
    kind, word = words[0]
    return f"w.tenant = :tenant AND w.kind = '{kind}' AND w.word = {word} AND w.first_seq < :before_seq"


def _of_that_time(f: Filter) -> str:
    after = "s.latest >= :created_after" if f.created_after is not None else "true"
    before = "s.earliest < :created_before" if f.created_before is not None else "true"
    return f"{after} AND {before}"
