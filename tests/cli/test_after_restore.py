"""`interlock restored` from outside: leases from before a restore are void."""

from __future__ import annotations

import asyncio

from interlock import assemble
from interlock.domain.decide import Complete
from interlock.domain.job import Job, Refused
from interlock.domain.policy import ClaimAsk
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
            (job,) = await engine.leases.claim("default", ClaimAsk("w", lease_seconds=600.0))
            return job

    return asyncio.run(claim())


def late_answer(cli: CLI, job: Job) -> object:
    async def complete() -> object:
        async with assemble.open_engine(cli.database) as engine:
            (answer,) = await engine.store.carry_out("default", [Complete(job.id, job.fence, "w")])
            return answer.error if isinstance(answer, Refused) else answer

    return asyncio.run(complete())


def test_restored_ends_what_ran_and_says_how_much(cli: CLI, postgres: Postgres) -> None:
    job = running(cli)
    name = cli.database.rpartition("/")[2]
    owner = postgres.dsn(name, user=OWNER) if cli.database.startswith("postgresql") else cli.database
    if owner != cli.database:
        refused = cli("restored")
        assert (refused.returncode, "owner's database URL" in refused.stderr) == (4, True)
    told = cli.json("restored", "--database", owner)
    assert told["revoked"] == 1
    assert isinstance(told["epoch"], int)
    assert isinstance(late_answer(cli, job), LeaseLost)
    shown = cli.json("jobs", "show", job.id)
    assert (shown["status"], shown["attempt"]) == ("retry", 2)
    assert "0 leases" in cli("restored", "--yes", "--database", owner).stdout
