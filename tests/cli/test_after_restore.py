"""`interlock restored` from outside: leases from before a restore are void."""

from __future__ import annotations

import asyncio

from interlock import assemble
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Job, Rejected
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.errors import LeaseLost
from interlock.wire import job_request
from tests.cli.test_cli import CLI, cli
from tests.support.postgres import OWNER, Postgres

__all__ = ["cli"]  # the fixture


def running(cli: CLI) -> Job:
    async def claim() -> Job:
        async with assemble.open_engine(cli.database) as engine:
            await engine.jobs.enqueue(local(), job_request({"type": "t"}))
            (job,) = await engine.leases.claim("default", ClaimFilter("w", lease_seconds=600.0))
            return job

    return asyncio.run(claim())


def late_answer(cli: CLI, job: Job) -> object:
    async def complete() -> object:
        async with assemble.open_engine(cli.database) as engine:
            (answer,) = await engine.store.carry_out("default", [CompleteJob(job.id, job.fence, "w")])
            return answer.error if isinstance(answer, Rejected) else answer

    return asyncio.run(complete())


def test_after_restore_ends_running_jobs_and_prints_how_many(cli: CLI, postgres: Postgres) -> None:
    job = running(cli)
    name = cli.database.rpartition("/")[2]
    owner = postgres.dsn(name, user=OWNER) if cli.database.startswith("postgresql") else cli.database
    if owner != cli.database:
        refused = cli("restored")
        assert (refused.returncode, "owner's database URL" in refused.stderr) == (4, True)
    reported = cli.json("restored", "--database", owner)
    assert reported["revoked"] == 1
    assert isinstance(reported["epoch"], int)
    assert isinstance(late_answer(cli, job), LeaseLost)
    encoded = cli.json("jobs", "show", job.id)
    assert (encoded["status"], encoded["attempt"]) == ("retry", 2)
    assert "0 leases" in cli("restored", "--yes", "--database", owner).stdout
