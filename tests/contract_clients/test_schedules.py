"""Schedules through every client: in process and over HTTP."""

from __future__ import annotations

import pytest

from interlock import wire
from interlock.domain.schedule import CatchUp
from interlock.errors import Invalid, NotFound
from interlock.wire.schedule import ScheduleRequest
from tests.contract_clients.remote_cli import ClientUnderTest

REPORT = ScheduleRequest(job=wire.job_request({"type": "report", "payload": {"n": 1e2}}), every_seconds=60)


async def test_a_schedule_is_created_paused_run_and_deleted(remote: ClientUnderTest) -> None:
    schedules = remote.client.schedules
    made = await schedules.set("s", REPORT)
    assert (made.version, made.every_seconds, made.type, made.phrase) == (1, 60, "report", "every 60 s")
    assert await schedules.get("s") == made
    assert made.next_at is not None
    assert await schedules.preview("s", 2) == [made.next_at, made.next_at + 60_000_000]
    assert (await schedules.pause("s")).paused_at is not None
    job = await schedules.run("s")
    assert (await remote.client.jobs.get(job.id)).payload == '{"n":100.0}'
    assert (await schedules.resume("s")).paused_at is None
    assert [one.name for one in await schedules.list()] == ["s"]
    await schedules.delete("s")
    with pytest.raises(NotFound, match="schedule"):
        await schedules.get("s")


async def test_schedules_are_listed_by_name_in_pages(remote: ClientUnderTest) -> None:
    for name in ("c", "a", "b"):
        await remote.client.schedules.set(name, REPORT)
    assert [one.name for one in await remote.client.schedules.list(limit=2)] == ["a", "b"]
    assert [one.name for one in await remote.client.schedules.list(after="b", limit=2)] == ["c"]


async def test_an_invalid_schedule_names_the_member(remote: ClientUnderTest) -> None:
    wrong = ScheduleRequest(job=REPORT.job, cron="* * * * * *", catch_up=CatchUp.ALL)
    with pytest.raises(Invalid, match="6 fields") as caught:
        await remote.client.schedules.set("s", wrong)
    assert caught.value.pointer == "/cron"
