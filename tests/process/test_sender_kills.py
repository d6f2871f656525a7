"""Senders that are killed, and workers that are killed under a receiver: no event is missed, none is invented."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any

import pytest

from interlock.domain.lifecycle import TERMINAL
from interlock.domain.webhook import EVENTS, DeliveryFilter, DeliveryStatus, NewSubscription
from interlock.domain.webhook_url import Allowance
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.webhook_sender import STAGES, Sender
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker, new_id
from tests.process.load import run_load_in_a_process
from tests.process.test_kills import orphans_gone
from tests.support.forms import chance
from tests.support.receiver import Receiver, receiver
from tests.support.workers import TIMEOUT, Member, Place, members, until

JOBS = 12
LEASE_SECONDS = 0.4  # of senders that are killed, after which what they had in hand is due again
HERE = Allowance.of(["127.0.0.1"])
SECRET = "whsec_" + "c2VjcmV0" * 4


def sender_in_a_process(pipe: Connection, place: Place, stage: str, nth: int) -> None:
    """Send until a stage is reached for the nth time, and die right there."""
    passed: Counter[str] = Counter()

    def at(here: str) -> None:
        passed[here] += 1
        if here == stage and passed[here] == nth:
            pipe.send(dict(passed))
            os.kill(os.getpid(), signal.SIGKILL)

    async def work() -> None:
        sender = Sender(await place.open(size=2), OutboundClient(HERE), lease_seconds=LEASE_SECONDS, at=at)
        sender.start()
        await asyncio.Event().wait()

    asyncio.run(work())


async def listen(checker: Checker, there: Receiver) -> None:
    new = NewSubscription(new_id(), there.url, EVENTS, SECRET)
    await checker.store.outbox.subscribe(TENANT, new)


async def everything(checker: Checker) -> list[Any]:
    found: list[Any] = []
    while page := await checker.store.outbox.deliveries(
        TENANT, DeliveryFilter(before=found[-1].id if found else None, limit=200)
    ):
        found += page
    return found


async def receive(member: Member) -> Any:
    """The output of a process, while the receiver here keeps responding."""
    return await asyncio.to_thread(member.receive)


async def end(member: Member) -> None:
    await asyncio.to_thread(member.wait)


@pytest.mark.parametrize("stage", STAGES)
async def test_a_sender_killed_at_any_stage_misses_nothing(checker: Checker, stage: str) -> None:
    async with receiver() as there:
        await listen(checker, there)
        await checker.add(JOBS)
        for nth in (1, 3):
            member = Member(sender_in_a_process, checker.place, stage, nth)
            with members(member):
                passed = await receive(member)
                await end(member)
            assert passed[stage] == nth
        outside = OutboundClient(HERE, deadline_seconds=TIMEOUT)
        survivor = Sender(checker.store, outside, lease_seconds=2 * TIMEOUT)
        survivor.start()

        async def all_sent() -> bool:
            return {d.status for d in await everything(checker)} == {DeliveryStatus.DELIVERED}

        await until(all_sent, "every event is delivered")
        await survivor.stop()
        await outside.close()
        reported = {d.id: d for d in await everything(checker)}
        assert len(reported) == JOBS + 1, "one queue.ready for them all"
        assert set(there.ids) == reported.keys()
        bodies: dict[str, set[bytes]] = {}
        for seen in there.seen:
            bodies.setdefault(seen.headers["webhook-id"], set()).add(seen.body)
        assert all(len(texts) == 1 for texts in bodies.values()), "a repeated delivery has the same body"
        assert all(json.loads(text)["id"] == id for id, (text,) in bodies.items())


async def test_every_transition_of_a_killed_worker_is_in_the_outbox_and_no_other(checker: Checker) -> None:
    """The outbox row is part of the transaction: every transition in history will be delivered."""
    dice = chance()
    async with receiver() as there:
        await listen(checker, there)
    for worker in range(1, 9 if FAST else 31):
        member = Member(run_load_in_a_process, checker.place, worker)
        with members(member):
            assert member.receive() is None
            member.pipe.send("go")
            for _ in range(dice.randrange(1, 12)):
                member.receive()
            end_at = time.perf_counter() + dice.uniform(0, 0.004)
            while time.perf_counter() < end_at:  # a moment, not a wait: nothing depends on its length
                pass
            member.signal(signal.SIGKILL)
            member.wait()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    moves: Counter[tuple[str, str]] = Counter()
    for job in await checker.everything():
        for row in await checker.store.history(TENANT, job.id):
            if row.from_status != row.to_status:
                moves[job.id, f"job.{row.to_status}"] += 1
    reported = Counter((d.job_id, d.event) for d in await everything(checker) if d.event != "queue.ready")
    assert reported == moves
    assert sum(event.removeprefix("job.") in TERMINAL for _, event in moves.elements()) > 0
