"""Checking chains of history rows as they are read, one job after another."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final

from interlock.domain.audit import VerifiedPart, history_hash
from interlock.errors import Invalid
from interlock.storage.contract import Verdict

BEFORE_ALL: Final = "00000000-0000-0000-0000-000000000000"
ENDS_AT_ONCE: Final = 2_000

Ends = Sequence[tuple[str, bytes]]  # the last hash of the history of each job, by job


def verify(rows: Iterable[tuple[Any, ...]]) -> Verdict:
    """Walk rows ordered by tenant, job and version; the last two columns are the job's own version and status."""
    jobs = count = 0
    bad: str | None = None
    last: tuple[Any, ...] | None = None
    for row in rows:
        new = last is None or last[:2] != row[:2]
        if bad is None:
            bad = _bad_end(last) if new else None
            bad = bad or _bad_row(row, None if new else last)
        jobs += new
        count += 1
        last = row
    return Verdict(jobs, count, bad or _bad_end(last))


def part(tenant: str, verdict: Verdict, bare: Sequence[str], next: str | None) -> VerifiedPart:
    """What is told of some chains; bare names a job that has none."""
    bad = verdict.first_bad or (f"{tenant} {bare[0]}: the job has no history" if bare else None)
    return VerifiedPart(verdict.jobs, verdict.rows, bad, next)


def no_such_place(cursor: str) -> Invalid:
    return Invalid(f"{cursor[:100]!r} is not where a verification has stopped", pointer="/cursor")


def _bad_row(row: tuple[Any, ...], before: tuple[Any, ...] | None) -> str | None:
    where = f"{row[0]} {row[1]} version {row[2]}"
    if row[13] is None:
        return f"{where}: the job is gone, its history is not"
    if row[2] != (1 if before is None else before[2] + 1):
        return f"{where}: a version is missing before this row"
    if row[3] != (None if before is None else before[4]):
        return f"{where}: it does not start from the status the row before ended in"
    if bytes(row[12]) != history_hash(None if before is None else bytes(before[12]), *row[:12]):
        return f"{where}: the hash does not fit the row and the one before"
    return None


def _bad_end(row: tuple[Any, ...] | None) -> str | None:
    if row is None or (row[13] == row[2] and row[14] == row[4]):
        return None
    return (
        f"{row[0]} {row[1]} version {row[2]}: the job says version {row[13]}, {row[14]}; its history ends in {row[4]}"
    )


class Head:
    """One hash over the last hash of every chain, added piece by piece, ordered by tenant and job."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, ends: Iterable[tuple[str, str, bytes]]) -> None:
        for tenant, job_id, hash in ends:
            self._digest.update(f"{len(tenant.encode())}:{tenant}{job_id}".encode() + bytes(hash))

    def __str__(self) -> str:
        return self._digest.hexdigest()


def head(ends: Iterable[tuple[str, str, bytes]]) -> str:
    """The head of all these chains."""
    whole = Head()
    whole.add(ends)
    return str(whole)


async def head_of(tenants: Iterable[str], ends: Callable[[str, str, int], Awaitable[Ends]]) -> str:
    """The head of all chains of these tenants; they are read some at a time, since there may be any number of them."""
    whole = Head()
    for tenant in sorted(tenants):
        after = BEFORE_ALL
        while some := await ends(tenant, after, ENDS_AT_ONCE):
            whole.add((tenant, *end) for end in some)
            after = some[-1][0]
    return str(whole)
