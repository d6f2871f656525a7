"""`interlock jobs tail|wait` from outside: events of jobs, live, and how they end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from interlock import assemble
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.domain.progress import Event, Level, Report, Step
from interlock.engine.engine import Engine
from interlock.wire import job_request, new_id
from tests.cli.test_cli import CLI, cli
from tests.support.eventually import RETRY_SECONDS

__all__ = ["cli"]  # the fixture


async def claimed(engine: Engine) -> Job:
    await engine.jobs.enqueue(local(), job_request({"type": "t"}))
    (job,) = await engine.leases.claim("default", ClaimFilter("w"))
    return job


async def reported(engine: Engine, job: Job, message: str) -> None:
    event = Event(new_id(), Level.WARN, message, '{"n":1}')
    await engine.progress.add_events("default", Report(job.id, job.fence, "w", (event,)))


def ended(cli: CLI, *, well: bool) -> str:
    """The ID of a job that emitted two events and ended."""

    async def live() -> str:
        async with assemble.open_engine(cli.database) as engine:
            job = await claimed(engine)
            await reported(engine, job, "first")
            await reported(engine, job, "\x1b[31msecond")
            failure = FailJob(job.id, job.fence, "w", '{"message":"no \\u001b[0m luck"}', retryable=False)
            await engine.store.carry_out(
                "default", [CompleteJob(job.id, job.fence, "w", '{"pages":3}') if well else failure]
            )
            return job.id

    return asyncio.run(live())


def test_messages_are_sent_and_listed(cli: CLI) -> None:
    id = str(cli.json("jobs", "add", "t")["id"])
    assert f"{id}: message 1, go" in cli("jobs", "send", id[-12:], "go", '{"n": 1}', "--id", "m1").stdout
    assert cli.json("jobs", "send", id, "go", '{"n": 1}', "--id", "m1")["seq"] == 1
    assert cli("jobs", "send", id, "stop").returncode == 0
    listed: Any = cli.json("jobs", "messages", id)
    assert [(one["name"], one["payload"]) for one in listed["items"]] == [("go", {"n": 1}), ("stop", None)]
    assert "stop" not in cli("jobs", "messages", id, "go").stdout
    assert "other content" in cli("jobs", "send", id, "go", "2", "--id", "m1").stderr
    assert cli("jobs", "send", id, "go", "{").returncode != 0
    assert "already" in cli("jobs", "send", ended(cli, well=True), "go").stderr


def test_a_failed_job_is_acknowledged(cli: CLI) -> None:
    well, badly = ended(cli, well=True), ended(cli, well=False)
    refused = cli("jobs", "acknowledge", well)
    assert (refused.returncode, "only a failed or dead-letter job can be acknowledged" in refused.stderr) == (4, True)
    assert badly in cli("jobs", "list", "--attention").stdout
    assert badly in cli("jobs", "list", "--attention", "--search", badly, "--status", "failed").stdout
    assert badly not in cli("jobs", "list", "--attention", "--type", "other").stdout
    assert badly not in cli("jobs", "list", "--search", badly, "--status", "cancelled").stdout
    assert cli("jobs", "list", "--search", badly, "--before", "9").returncode == 4
    assert f"{badly}: failed, acknowledged" in cli("jobs", "acknowledge", badly[-12:], "--comment", "known").stdout
    job = cli.json("jobs", "acknowledge", badly)
    assert (job["status"], job["version"]) == ("failed", 4)
    assert job["acknowledged_at"] is not None
    assert "known" in cli("jobs", "show", badly).stdout
    assert badly not in cli("jobs", "list", "--attention").stdout


def test_failed_jobs_are_acknowledged_together(cli: CLI) -> None:
    ids = [ended(cli, well=False) for _ in range(3)]
    assert cli("jobs", "acknowledge", *ids[:2], "--yes", "--comment", "known").stdout == "2 of 2 done\n"
    assert cli("jobs", "acknowledge", "--status", "failed", "--dry-run").stdout == "1 matched\n"
    assert "acknowledge 1 job" in cli("jobs", "acknowledge", "--status", "failed").stderr
    assert cli("jobs", "acknowledge").returncode == 4
    assert cli("jobs", "acknowledge", "--status", "failed", "--yes").stdout == "1 of 1 done\n"
    assert cli("jobs", "list", "--attention").stdout.count("failed") == 0


def test_a_job_is_shown_with_its_steps_and_newest_events(cli: CLI) -> None:
    async def live() -> str:
        async with assemble.open_engine(cli.database) as engine:
            job = await claimed(engine)
            for n in (1, 2):
                await engine.progress.save_step("default", Step(job.id, job.fence, "w", "fetch", n, f'{{"page": {n}}}'))
            for message in ("first", "second", "\x1b[31mthird"):
                await reported(engine, job, message)
            return job.id

    id = asyncio.run(live())
    encoded: Any = cli.json("jobs", "show", id[-8:], "--events", "2")
    assert [(s["name"], s["occurrence"], s["result"]) for s in encoded["steps"]] == [
        ("fetch", 1, {"page": 1}),
        ("fetch", 2, {"page": 2}),
    ]
    assert [(e["seq"], e["message"], e["payload"]) for e in encoded["events"]] == [
        (2, "second", {"n": 1}),
        (3, "\x1b[31mthird", {"n": 1}),
    ]
    text = cli("jobs", "show", id).stdout
    assert "\x1b" not in text
    for part in ("fetch", '{"page": 2}', "first", "second", "\\x1b[31mthird"):
        assert part in text
    assert cli.json("jobs", "show", id, "--events", "0")["events"] == []


def test_the_events_of_a_terminal_job_are_printed_and_never_control_the_terminal(cli: CLI) -> None:
    id = ended(cli, well=True)
    first, second = cli("jobs", "tail", id).stdout.splitlines()
    assert first.endswith('warn  first {"n":1}')
    assert "\\x1b[31msecond" in second
    assert "\x1b" not in second
    (line,) = cli("jobs", "tail", id, "--after", "1", "--json").stdout.splitlines()
    row = json.loads(line)
    assert (row["job_id"], row["seq"], row["level"], row["payload"]) == (id, 2, "warn", {"n": 1})
    assert cli("jobs", "tail", "01890000-0000-7000-8000-000000000000").returncode == 3


@pytest.mark.parametrize("of_all", [False, True])
async def test_events_are_printed_while_the_job_runs(cli: CLI, of_all: bool) -> None:
    async with assemble.open_engine(cli.database) as engine:
        job = await claimed(engine)
        tail = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "interlock", "jobs", "tail", *([] if of_all else [job.id]), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"INTERLOCK_DATABASE": cli.database},
        )
        assert tail.stdout is not None
        try:
            line = asyncio.create_task(asyncio.to_thread(tail.stdout.readline))
            while not line.done():  # of all jobs, only events emitted after the command has started are printed
                await reported(engine, job, "now")
                await asyncio.wait([line], timeout=0.5)
            assert json.loads(await line)["message"] == "now"
            await engine.store.carry_out("default", [CompleteJob(job.id, job.fence, "w")])
            if not of_all:
                await asyncio.to_thread(tail.communicate, timeout=RETRY_SECONDS)
                assert tail.returncode == 0
        finally:
            tail.kill()
            await asyncio.to_thread(tail.communicate)


def test_wait_prints_how_a_job_ended(cli: CLI) -> None:
    well, badly = ended(cli, well=True), ended(cli, well=False)
    done = cli("jobs", "wait", well)
    assert (done.returncode, done.stdout) == (0, '{"pages":3}\n')
    failed = cli("jobs", "wait", badly)
    assert (failed.returncode, failed.stdout) == (6, "")
    assert failed.stderr == f"interlock: job {badly} is failed: no \\x1b[0m luck\n"
    as_json = cli("jobs", "wait", badly, "--json")
    assert (as_json.returncode, json.loads(as_json.stdout)["status"]) == (6, "failed")


def test_wait_stops_after_its_timeout(cli: CLI) -> None:
    id = cli("jobs", "add", "t").stdout.strip()
    done = cli("jobs", "wait", id, "--timeout", "0.1")
    assert (done.returncode, done.stderr) == (6, f"interlock: job {id} is not terminal yet: it is queued\n")
    assert cli("jobs", "wait", "01890000-0000-7000-8000-000000000000").returncode == 3
