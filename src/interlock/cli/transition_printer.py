"""Prints every transition of recent jobs on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Final

from interlock.cli import output
from interlock.domain import json_text
from interlock.domain.job import Filter, HistoryRow, Job
from interlock.domain.lifecycle import Status
from interlock.domain.retry import SECOND
from interlock.engine.queries import Queries
from interlock.errors import NotFound, Unavailable

LOOK_SECONDS: Final = 0.25
NEWEST: Final = Filter(limit=200)


class TransitionPrinter:
    """Follows the newest jobs of a tenant; `command` writes what it advises as it can be copied."""

    def __init__(self, queries: Queries, tenant: str, command: Callable[[str], str]) -> None:
        self._reads, self._tenant, self._command = queries, tenant, command
        self._printed: dict[str, int] = {}  # versions by job

    async def report(self) -> None:
        """Until cancelled; of what was there before, only what changes."""
        for job in await self._reads.jobs(self._tenant, NEWEST):
            self._printed[job.id] = job.version
            self._advise(job)
        while True:
            with contextlib.suppress(Unavailable):  # the worker logs it
                await self._print_new()
            await asyncio.sleep(LOOK_SECONDS)

    async def _print_new(self) -> None:
        newest = await self._reads.jobs(self._tenant, NEWEST)
        self._printed = {job.id: self._printed.get(job.id, 0) for job in newest}
        moves = [move for job in newest if job.version > self._printed[job.id] for move in await self._moves(job.id)]
        for row, job in sorted(moves, key=lambda move: (move[0].at, move[0].job_id, move[0].version)):
            output.print_line(line(row, job))
            if row.version == job.version:
                self._advise(job)

    async def _moves(self, job_id: str) -> list[tuple[HistoryRow, Job]]:
        """Return the transitions of a job that were not printed yet, with the job as of the last of them or later."""
        printed = self._printed[job_id]
        try:
            rows = [row for row in await self._reads.history(self._tenant, job_id) if row.version > printed]
            job = await self._reads.job(self._tenant, job_id)
        except NotFound:  # pruned a moment ago
            return []
        self._printed[job_id] = max((row.version for row in rows), default=printed)
        return [(row, job) for row in rows]

    def _advise(self, job: Job) -> None:
        if job.status is Status.WAITING_FOR_APPROVAL:
            output.print_line(f"          {self._command(f'approvals approve {job.approval_id}')}")
        elif job.status is Status.DEAD_LETTER:
            output.print_line(f"          {self._command(f'jobs why {job.id}')}")


def line(row: HistoryRow, job: Job) -> str:
    """`14:03:22  report       running → retry                    lease_expired`."""
    clock = time.strftime("%H:%M:%S", time.localtime(row.at // SECOND))
    move = f"{row.from_status or 'new'} → {row.to_status}"
    return f"{clock}  {job.type:<12} {move:<33}  {_detail(row, job)}".rstrip()


def _detail(row: HistoryRow, job: Job) -> str:
    if row.to_status is Status.RUNNING:
        return row.actor
    if row.reason is None and row.version == job.version and job.error is not None:
        return str(json_text.loads(job.error)["message"])
    return row.reason or ""
