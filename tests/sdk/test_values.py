"""Public values: complete, frozen, and the same on a database and a server."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from datetime import UTC, datetime, timedelta

import pytest

import interlock
from interlock.domain.job import FIELDS
from tests.support.apps import StoreApp


def test_the_public_job_has_every_field_of_the_record() -> None:
    renamed = {"agent_kind": "agent", "agent_id": "agent", "timeout_seconds": "timeout"}
    renamed["expiry_delay_seconds"] = "expiry_delay"
    derived = {"budgets", "budget_roots"}
    assert {renamed.get(name, name) for name in FIELDS} | derived == {field.name for field in fields(interlock.Job)}


async def test_a_job_has_times_durations_and_decoded_json(app: StoreApp) -> None:
    backoff = interlock.Backoff("fixed", base=timedelta(seconds=5))
    handle = await app.jobs.enqueue("mail", {"to": "ada"}, timeout=60, backoff=backoff.to_json(), tags=["a"])
    job = await app.jobs.get(handle.id)
    assert (job.payload, job.timeout, job.tags) == ({"to": "ada"}, timedelta(minutes=1), ("a",))
    assert job.backoff == interlock.Backoff("fixed", base=5)
    assert job.status is interlock.Status.QUEUED
    assert job.created_at.tzinfo is UTC
    assert job == await handle.refresh()
    with pytest.raises(FrozenInstanceError):
        job.priority = 3  # type: ignore[misc]


async def test_the_groups_return_public_values(app: StoreApp) -> None:
    handle = await app.jobs.enqueue("mail")
    assert [job.id for job in await app.jobs.list(status="queued")] == [handle.id]
    assert [row.verb for row in await app.jobs.history(handle.id)] == [interlock.Verb.ENQUEUE]
    assert (await app.jobs.why(handle.id)).code is interlock.ReasonCode.NO_WORKER_FOR_TYPE
    assert (await app.queues.get("mail")).ready == 1
    agent = await app.agents.set("worker", "reader", max_concurrency=2, defaults=interlock.Defaults(max_attempts=7))
    assert agent == await app.agents.get("worker", "reader")
    assert agent.defaults.max_attempts == 7
    made = await app.types.set("mail", schema={"type": "object"})
    assert (made.schema, [one.name for one in await app.types.list()]) == ({"type": "object"}, ["mail"])
    schedule = await app.schedules.set("nightly", "mail", cron="0 2 * * *")
    assert (schedule.every, schedule.job["type"]) == (None, "mail")
    assert all(isinstance(tick, datetime) for tick in await app.schedules.preview("nightly", 3))
    assert (await app.jobs.cancel(handle.id, reason="test")).status is interlock.Status.CANCELLED
    assert "agent.set" in [row.action for row in await app.audit.log()]
    assert (await app.me()).roles >= {"read", "work"}


async def test_a_failed_job_is_acknowledged(app: StoreApp) -> None:
    @app.task
    async def broken() -> None:
        raise interlock.Fail("no")

    handle = await broken.enqueue()
    await app.drain()
    receipt = await app.jobs.acknowledge(handle.id, comment="seen")
    job = await handle.refresh()
    assert (receipt.id, job.acknowledged_by) == (handle.id, (await app.me()).actor)
    assert job.acknowledged_at is not None
