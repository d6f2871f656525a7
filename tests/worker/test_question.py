"""A task asks approvers for data, waits without a worker, and resumes with the typed answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pydantic
import pytest

import interlock
from interlock.domain.approval import Approval, ApprovalFilter, ApprovalKind, ApprovalStatus, Decision
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from interlock.errors import Invalid
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import ManualClock

ADA = local(TENANT)


class Branch(msgspec.Struct):
    name: Literal["main", "next"]
    force: bool = False


@dataclass
class Amount:
    usd: int


class Person(pydantic.BaseModel):
    first: str


class Name(msgspec.Struct):
    first: str


class Note(msgspec.Struct):
    to: str
    person: Name
    comment: str = ""


async def pending(app: StoreApp, job_id: str) -> Approval:
    filter = ApprovalFilter(status=ApprovalStatus.OPEN, job_id=job_id)
    (found,) = await app.engine.approvals.list(TENANT, filter)
    return found


async def respond(app: StoreApp, job_id: str, data: Any = None, **more: Any) -> None:
    decision = Decision.DENY if data is None else Decision.APPROVE
    text = None if data is None else json.dumps(data)
    await app.engine.approvals.decide(ADA, (await pending(app, job_id)).id, decision, data=text, **more)


@pytest.mark.parametrize(
    ("wanted", "sent", "answer"),
    [
        (Branch, {"name": "next"}, Branch("next")),
        (Amount, {"usd": 5}, Amount(5)),
        (Person, {"first": "Ada"}, Person(first="Ada")),
        (int, {"answer": 7}, 7),
        (list[str], {"answer": ["a"]}, ["a"]),
        ({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"n": 1}, {"n": 1}),
        (str, {"answer": "tides"}, "tides"),
    ],
    ids=["struct", "dataclass", "pydantic", "integer", "list", "schema", "text"],
)
async def test_the_answer_has_the_type_that_the_task_asked_for(
    app: StoreApp, wanted: Any, sent: Any, answer: Any
) -> None:
    seen: list[Any] = []

    @app.task
    async def deploy(ctx: interlock.Context) -> None:
        seen.append(await ctx.ask("Which one?", schema=wanted))

    handle = await deploy.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, job.worker, (await pending(app, handle.id)).kind) == (
        Status.WAITING_FOR_APPROVAL, None, ApprovalKind.QUESTION,
    )  # fmt: skip
    await respond(app, handle.id, sent)
    await app.drain()
    assert (await app.job(handle.id)).status is Status.SUCCEEDED
    assert seen == [answer]


async def test_an_answer_without_a_required_field_is_rejected_and_the_question_stays_open(app: StoreApp) -> None:
    @app.task
    async def deploy(ctx: interlock.Context) -> str:
        return (await ctx.ask("Which branch?", schema=Branch)).name

    handle = await deploy.enqueue()
    await app.drain()
    question = await pending(app, handle.id)
    for data in (None, "{}", '{"name": "other"}'):
        with pytest.raises(Invalid):
            await app.engine.approvals.decide(ADA, question.id, Decision.APPROVE, data=data)
    await respond(app, handle.id, {"name": "main"})
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "main"


@pytest.mark.parametrize("text", ["", "  ", "\u200b"])
async def test_a_required_field_left_empty_is_rejected(app: StoreApp, text: str) -> None:
    @app.task
    async def deploy(ctx: interlock.Context) -> str:
        return (await ctx.ask("To whom?", schema=Note)).to

    handle = await deploy.enqueue()
    await app.drain()
    with pytest.raises(Invalid) as caught:
        await respond(app, handle.id, {"to": text, "person": {"first": "Ada"}})
    assert caught.value.pointer == "/data/to"
    with pytest.raises(Invalid) as caught:
        await respond(app, handle.id, {"to": "Ada", "person": {"first": text}})
    assert caught.value.pointer == "/data/person/first"
    await respond(app, handle.id, {"to": "Ada", "person": {"first": "Ada"}, "comment": text})
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "Ada"


async def test_a_declined_question_raises_in_the_task_with_the_comment(app: StoreApp) -> None:
    @app.task
    async def deploy(ctx: interlock.Context) -> str:
        try:
            return await ctx.ask("Which branch?")
        except interlock.Declined as declined:
            return f"declined: {declined.comment}"

    handle = await deploy.enqueue()
    await app.drain()
    await respond(app, handle.id, comment="not today")
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "declined: not today"


async def test_questions_and_approvals_without_a_name_are_numbered_apart(app: StoreApp) -> None:
    @app.task
    async def deploy(ctx: interlock.Context) -> list[object]:
        first = await ctx.ask("First?")
        approved = (await ctx.approve("Go on?")).approved
        return [first, approved, await ctx.ask("Second?")]

    handle = await deploy.enqueue()
    await app.drain()
    for data in ({"answer": "a"}, None, {"answer": "b"}):
        found = await pending(app, handle.id)
        text = None if data is None else json.dumps(data)
        await app.engine.approvals.decide(ADA, found.id, Decision.APPROVE, data=text)
        await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["a", True, "b"]


async def test_an_approval_in_the_place_of_a_question_is_a_mismatch(app: StoreApp, clock: ManualClock) -> None:
    is_deployed = False

    @app.task
    async def deploy(ctx: interlock.Context) -> str:
        if is_deployed:
            await ctx.approve("Go on?", name="branch")
            return "approved"
        return await ctx.ask("Which branch?", name="branch")

    handle = await deploy.enqueue()
    await app.drain()
    await respond(app, handle.id, {"answer": "main"})
    is_deployed = True
    await app.drain()
    job = await app.job(handle.id)
    assert (job.status, json.loads(job.error or "{}")["kind"]) == (Status.RETRY, "step_mismatch")
    assert "was recorded as a question" in (job.error or "")
    is_deployed = False
    clock.advance(60.0)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == "main"


async def test_a_blocking_task_asks_too(app: StoreApp) -> None:
    @app.task
    def deploy(ctx: interlock.Context) -> int:
        return int(ctx.ask_sync("How many?", schema=int)) + 1

    handle = await deploy.enqueue()
    await app.drain()
    await respond(app, handle.id, {"answer": 41})
    await asyncio.wait_for(app.drain(), RETRY_SECONDS)
    assert await handle.result(timeout=RETRY_SECONDS) == 42
