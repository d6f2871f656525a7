"""Verification of history chains while they are read, one job after another."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from interlock.domain.audit import VerifiedPart, history_hash
from interlock.domain.digests import Kept, carried
from interlock.domain.operator_log import LogRow, bad_row
from interlock.errors import Invalid
from interlock.storage.contract import ChainVerification

BEFORE_ALL: Final = "00000000-0000-0000-0000-000000000000"
ENDS_BATCH_SIZE: Final = 2_000
VERIFIED_BATCH_SIZE: Final = 1_000
LOG_ROWS_AT_ONCE: Final = 1_000

Ends = Sequence[tuple[str, bytes]]  # the chain head of each job


class ChainRow(NamedTuple):
    """A row of history, with the version, status and head that its job has now; None if the job is gone."""

    tenant: str
    job_id: str
    version: int
    from_status: str | None
    to_status: str
    verb: str
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: str | None
    at: int
    hash: bytes
    job_version: int | None
    job_status: str | None
    job_head: bytes | None


def verify(rows: Iterable[Iterable[Any]], kept: Mapping[str, Kept] | None = None) -> ChainVerification:
    """Verify rows ordered by tenant, job and version, with the columns of a ChainRow.

    With `kept`, by job, compare the digests of the rows with the job's current data in the database.
    """
    jobs = count = 0
    bad: str | None = None
    for (_, job_id), chain in groupby(map(ChainRow._make, rows), key=attrgetter("tenant", "job_id")):
        chained = list(chain)
        jobs, count = jobs + 1, count + len(chained)
        if bad is None:
            bad = _bad_chain(chained) or (None if kept is None else _bad_content(chained, kept[job_id]))
    return ChainVerification(jobs, count, bad)


async def verify_all(
    tenants: Iterable[str], part_of: Callable[[str, str | None], Awaitable[VerifiedPart]]
) -> ChainVerification:
    """Verify all chains of these tenants, part by part."""
    verdict = ChainVerification(0, 0, None)
    for tenant in tenants:
        after: str | None = None
        while True:
            one = await part_of(tenant, after)
            verdict = ChainVerification(
                verdict.jobs + one.jobs, verdict.rows + one.rows, verdict.first_bad or one.first_bad
            )
            if (after := one.next) is None:
                break
    return verdict


def part(tenant: str, verdict: ChainVerification, bare: Sequence[str], next: str | None) -> VerifiedPart:
    """Build the result for some chains; `bare` lists jobs without a chain."""
    bad = verdict.first_bad or (f"{tenant} {bare[0]}: the job has no history" if bare else None)
    return VerifiedPart(verdict.jobs, verdict.rows, bad, next)


class ReadLog(Protocol):
    """A reader of audit log rows."""

    def __call__(self, tenant: str, *, after: int = 0, limit: int) -> Awaitable[list[LogRow]]: ...


async def with_log(tenant: str, part: VerifiedPart, read: ReadLog) -> VerifiedPart:
    """Add the audit log to the last part of an audit."""
    if part.next is not None or part.first_bad is not None:
        return part
    before: LogRow | None = None
    while rows := await read(tenant, after=before.seq if before else 0, limit=LOG_ROWS_AT_ONCE):
        if (bad := bad_row(tenant, rows, before)) is not None:
            return part._replace(first_bad=bad)
        before = rows[-1]
    return part


def invalid_cursor(cursor: str) -> Invalid:
    return Invalid(f"{cursor[:100]!r} is not where a verification has stopped", pointer="/cursor")


def _bad_chain(chain: Sequence[ChainRow]) -> str | None:
    before: ChainRow | None = None
    for row in chain:
        if (bad := _bad_row(row, before)) is not None:
            return bad
        before = row
    return _bad_end(chain[-1])


def _bad_row(row: ChainRow, before: ChainRow | None) -> str | None:
    where = _where(row)
    if row.job_version is None:
        return f"{where}: the job is gone, its history is not"
    if row.version != (1 if before is None else before.version + 1):
        return f"{where}: a version is missing before this row"
    if row.from_status != (None if before is None else before.to_status):
        return f"{where}: it does not start from the status the row before ended in"
    hash = history_hash(
        None if before is None else bytes(before.hash), row.tenant, row.job_id, row.version, row.from_status,
        row.to_status, row.verb, row.actor, row.attempt, row.fence, row.reason, row.metadata, row.at,
    )  # fmt: skip
    if bytes(row.hash) != hash:
        return f"{where}: the hash does not match the row and the previous one"
    return None


def _bad_end(row: ChainRow) -> str | None:
    where = _where(row)
    if row.job_version != row.version or row.job_status != row.to_status:
        return (
            f"{where}: the job has version {row.job_version}, {row.job_status}, but its history ends in {row.to_status}"
        )
    if row.job_head is None or bytes(row.job_head) != bytes(row.hash):
        return f"{where}: the head of the job is the hash of another row; rows after this one are missing"
    return None


def _bad_content(chain: Sequence[ChainRow], kept: Kept) -> str | None:
    """Return the first row whose digests do not match the data in the database."""
    newest: dict[str, tuple[str | None, ChainRow]] = {}
    steps, requests, decisions = dict(kept.steps), dict(kept.requests), dict(kept.decisions)
    for row in chain:
        digests = carried(row.metadata)
        left, reached, fence = row.from_status, row.to_status, row.fence
        now: dict[str, str | None] = {}
        if left is None:
            now["steps"] = steps.pop(0, None)
        elif left == "running" != reached:
            now["steps"] = steps.pop(fence, None)
        if reached == "waiting_for_approval":
            now["request"] = requests.pop(fence, None)
        elif left == "waiting_for_approval":
            now["decision"] = decisions.pop(fence, None)
        for name, digest in now.items():
            if digest != digests.get(name):
                return _differs(row, name)
        newest |= {name: (digests[name], row) for name in digests if name in kept.values}
        if reached == "succeeded":
            newest["error"] = (None, row)
    last = chain[-1]
    unsettled = last.to_status == "running" and (kept.checkpoint_at or 0) >= last.at  # saved since the last transition
    for name, value in kept.values.items():
        digest, row = newest.get(name, (None, chain[0]))
        if digest != value and not (name == "checkpoint" and unsettled):
            return _differs(row, name)
    # A running job has saved steps that its next transition will cover, and an open approval has no decision yet.
    if any(fence != last.fence or last.to_status != "running" for fence in steps):
        return f"{_where(last)}: a step was saved under a lease that no transition ended"
    if requests:
        return f"{_where(last)}: an approval was requested by no transition"
    return None


def _where(row: ChainRow) -> str:
    return f"{row.tenant} {row.job_id} version {row.version}"


def _differs(row: ChainRow, name: str) -> str:
    return f"{_where(row)}: the digest of {name} does not match: the {name} was changed after this transition"


class Head:
    """One hash over all chain heads, updated incrementally, ordered by tenant and job."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, ends: Iterable[tuple[str, str, bytes]]) -> None:
        for tenant, job_id, hash in ends:
            self._digest.update(f"{len(tenant.encode())}:{tenant}{job_id}".encode() + bytes(hash))

    def __str__(self) -> str:
        return self._digest.hexdigest()


def head(ends: Iterable[tuple[str, str, bytes]]) -> str:
    """Return the head of all these chains."""
    whole = Head()
    whole.add(ends)
    return str(whole)


async def head_of(
    tenants: Iterable[str],
    ends: Callable[[str, str, int], Awaitable[Ends]],
    log_end: Callable[[str], Awaitable[bytes | None]],
) -> str:
    """Return the head over all chains of these tenants; each tenant's audit log follows its chains.

    Chain heads are read in pages, because their number is unbounded.
    """
    whole = Head()
    for tenant in sorted(tenants):
        after = BEFORE_ALL
        while some := await ends(tenant, after, ENDS_BATCH_SIZE):
            whole.add((tenant, *end) for end in some)
            after = some[-1][0]
        if (end := await log_end(tenant)) is not None:
            whole.add([(tenant, "audit_log", end)])
    return str(whole)
