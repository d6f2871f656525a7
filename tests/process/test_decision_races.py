"""People who decide at the same moment, in several processes; and the text of a link token, which is kept nowhere."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from interlock.domain.approval import Approval, ApprovalStatus, CastVote, Decision, RequestApproval
from interlock.domain.decide import CancelJob, Command, ExpireLease
from interlock.domain.job import Job, Rejected
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.principal import Principal
from interlock.domain.progress import Event, Level, Report
from interlock.domain.webhook import DeliveryFilter
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.storage.contract import Store
from interlock.wire import SubscriptionRequest, TokenRequest
from tests.process import actions
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker, new_id
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import find_binaries
from tests.support.receiver import receiver
from tests.support.workers import Failed, ProcessGroup, until

APPROVE, DENY = Decision.APPROVE, Decision.DENY
ADA = Principal(TENANT, "user:ada", frozenset({"approve"}))
OPERATOR = Principal(TENANT, "user:ops", frozenset({"admin", "operate"}))
AGENT = Principal(TENANT, "worker:w", frozenset({"work"}))


async def vote(store: Store, commands: Sequence[CastVote]) -> list[Any]:
    """The approval after each vote, or the code of its error."""
    answers = await store.approvals.decide(TENANT, commands)
    return [answer.error.code if isinstance(answer, Rejected) else str(answer.status) for answer in answers]


def asks(job: Job, **fields: Any) -> RequestApproval:
    made = {"id": job.id, "fence": job.fence, "worker": "w", "approval_id": new_id(), "prompt": "Go on?"}
    return RequestApproval(**{**made, "opened_by": "worker:w", **fields})


async def waiting(checker: Checker, **fields: Any) -> tuple[Job, Approval]:
    (job,) = await checker.running()
    order = asks(job, **fields)
    await checker.store.carry_out(TENANT, [order])
    (approval,) = await checker.store.approvals.get(TENANT, [order.approval_id])
    assert approval is not None
    return job, approval


async def approval_now(checker: Checker, approval: Approval) -> Approval:
    (now,) = await checker.store.approvals.get(TENANT, [approval.id])
    assert now is not None
    return now


def no_call_failed(answers: list[Any]) -> None:
    failed = [answer for answer in answers if isinstance(answer, Failed)]
    assert not failed, failed


async def test_of_64_deciders_in_several_processes_exactly_one_decides(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        for _ in range(2 if FAST else 6):
            job, approval = await waiting(checker)
            commands = [CastVote(approval.id, f"user:{i}", DENY if i % 2 else APPROVE) for i in range(64)]
            answers = workers.race(*((vote, [command]) for command in commands))
            no_call_failed(answers)
            now = await approval_now(checker, approval)
            assert Counter(given for (given,) in answers) == {str(now.status): 1, "already_decided": 63}
            assert len(now.votes) == 1
            (after,) = await checker.jobs([job.id])
            assert after.status is (Status.QUEUED if now.status is ApprovalStatus.APPROVED else Status.FAILED)
            assert [row.verb for row in await checker.store.history(TENANT, job.id)][2:] == [
                Verb.REQUEST_APPROVAL,
                Verb.DECIDE,
            ]
            if after.status is Status.QUEUED:
                await checker.store.carry_out(TENANT, [CancelJob(job.id, "user:x")])
    await checker.check()


async def test_the_same_vote_from_many_processes_is_counted_once_with_the_same_result(checker: Checker) -> None:
    with ProcessGroup(checker.place, 8) as workers:
        _, approval = await waiting(checker, required=2)
        answers = workers.race(*[(vote, [CastVote(approval.id, "user:ada", APPROVE)])] * 32)
        assert answers == [["open"]] * 32
        assert len((await approval_now(checker, approval)).votes) == 1
        answers = workers.race(*((vote, [CastVote(approval.id, f"user:{i}", APPROVE)]) for i in range(32)))
        no_call_failed(answers)
        assert Counter(given for (given,) in answers) == {"approved": 1, "already_decided": 31}
    await checker.check()


async def test_a_decision_and_a_cancel_never_both_end_a_wait(checker: Checker) -> None:
    await both(
        checker, lambda job: CancelJob(job.id, "user:x"), {}, Status.CANCELLED, ApprovalStatus.VOID, "approval_void"
    )


async def test_a_decision_and_an_expiry_never_both_end_a_wait(checker: Checker) -> None:
    fields = {"expires_in_seconds": 0.02}
    await both(
        checker, lambda job: ExpireLease(job.id), fields, Status.FAILED, ApprovalStatus.EXPIRED, "approval_expired"
    )


async def both(
    checker: Checker, rival: Any, fields: dict[str, Any], ends: Status, closes: ApprovalStatus, refused: str
) -> None:
    with ProcessGroup(checker.place, 2) as workers:
        for _ in range(15 if FAST else 60):
            job, approval = await waiting(checker, **fields)
            if fields:  # right at its end, so that either may come first
                await until(lambda end=approval.expires_at: past(checker, end - 2_000), "it is about to expire")  # type: ignore[misc]
            order: Command = rival(job)
            answers = workers.race((vote, [CastVote(approval.id, "user:ada", APPROVE)]), (actions.carry_out, [order]))
            no_call_failed(answers)
            ((given,), _) = answers
            (after,), now = await checker.jobs([job.id]), await approval_now(checker, approval)
            if given == "approved":
                assert now.status is ApprovalStatus.APPROVED
                assert after.status in (Status.QUEUED, ends)  # a cancel finds it queued and ends it
                await checker.store.carry_out(TENANT, [CancelJob(job.id, "user:x")])
            else:
                assert (given, now.status, after.status, now.votes) == (refused, closes, ends, ())
    await checker.check()


async def past(checker: Checker, micros: int) -> bool:
    return await checker.store.now() >= micros


async def test_the_text_of_a_link_token_is_in_no_byte_of_the_database_and_in_no_log(
    checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with receiver() as host:
        engine = Engine(checker.store, outside=OutboundClient(host.allowance))
        wanted = ["job.queued", "job.failed", "approval.requested", "approval.decided"]
        await engine.webhooks.subscribe(OPERATOR, SubscriptionRequest(url=host.url, events=wanted))
        tokens = [(await engine.tokens.create(OPERATOR, TokenRequest(roles=["approve"]))).text]
        for decision in Decision:
            (job,) = await checker.running()
            await engine.progress.add_events(TENANT, Report(job.id, job.fence, "w", (planted_event(),)))
            approval = (await engine.approvals.open(AGENT, asks(job))).approval
            assert approval is not None
            tokens += [(await engine.approvals.create_link(ADA, approval.id)).token for _ in range(2)]
            await engine.approvals.decide_by_token(tokens[-1], decision, comment="planted comment")
            await engine.tokens.authenticate(tokens[0])
        await engine.sender.deliver_due()
        assert await checker.store.outbox.deliveries(TENANT, DeliveryFilter(limit=100))
        sent = b"".join(repr(seen).encode() for seen in host.seen)
        await engine.tokens.close()
        await engine.outside.close()
    kept = await asyncio.to_thread(everything_kept, checker)
    for planted in (b"planted comment", b"planted event", b"approval.decided"):
        assert planted in kept  # what is looked at does hold what was written
    secrets = [token.split("_", 1)[1] for token in tokens]
    assert len(secrets) == 5
    places = (kept, sent, caplog.text.encode())
    assert [secret for secret in secrets if any(secret.encode() in place for place in places)] == []
    assert [secret for secret in secrets if secret.encode().hex().encode() in kept] == []


def planted_event() -> Event:
    return Event(new_id(), Level.INFO, "planted event")


def everything_kept(checker: Checker) -> bytes:
    """The files of a SQLite database with its log, or a dump of a PostgreSQL one and the log of the whole server."""
    if checker.admin_dsn is None:
        path = Path(checker.place.address)
        return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))
    dump = subprocess.run(
        [find_binaries() / "pg_dump", "--dbname", checker.admin_dsn],
        capture_output=True,
        check=True,
        timeout=RETRY_SECONDS,
    )
    where = subprocess.run(
        [find_binaries() / "psql", "--dbname", checker.admin_dsn, "-Atc", "show data_directory"],
        capture_output=True, check=True, timeout=RETRY_SECONDS, text=True,
    )  # fmt: skip
    log = Path(where.stdout.strip()) / "pg_wal"
    if not os.access(log, os.R_OK):  # a server that was given to the tests may be anywhere
        return dump.stdout
    return b"".join([dump.stdout, *(file.read_bytes() for file in sorted(log.glob("0*")))])
