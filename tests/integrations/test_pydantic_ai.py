"""Agents of Pydantic AI in tasks: nothing that was finished is repeated, approvals wait without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from interlock import Retry
from interlock.domain.lifecycle import Status
from interlock.integrations.pydantic_ai import InterlockDurability, stream_text
from interlock.integrations.running import StepOptions
from tests.integrations.conftest import DrainedApp
from tests.integrations.kills import AT_ONCE, KILLS, Rig, check_calls, rigged
from tests.integrations.model_server import PARALLEL, TURNS, Call, ModelServer, tokens, total


@pytest.fixture
async def rig(url: str, model: ModelServer, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged("tests.integrations.pydantic_ai_tasks", url, model, tmp_path) as made:

        @made.app.task(max_attempts=100, backoff=AT_ONCE)
        async def add_up(question: str) -> int:
            return 0

        @made.app.task(max_attempts=100, backoff=AT_ONCE)
        async def add_up_carefully(question: str) -> int:
            return 0

        yield made


async def test_a_killed_worker_repeats_no_finished_model_request_or_tool_call(rig: Rig) -> None:
    job = await rig.run("add_up", question="How many?", kills=KILLS)
    assert (job.status, job.result) == (Status.SUCCEEDED, total()), (job.error, rig.kills)
    check_calls(rig.model.calls)
    assert job.usage == {"requests": TURNS + 1, **tokens()}


async def test_each_tool_call_that_requires_approval_waits_without_a_worker(rig: Rig) -> None:
    handle = await rig.app.tasks["add_up_carefully"].enqueue(question="How many?")
    asked = []
    while (job := await rig.follow(handle)).status is Status.WAITING_FOR_APPROVAL:
        assert job.approval_id is not None
        approval = await rig.app.approvals.get(job.approval_id)
        asked.append(approval.details["arguments"])
        deny = len(asked) == 1
        await rig.app.approvals.decide(job.approval_id, "deny" if deny else "approve", comment="no" if deny else None)
    assert asked == [{"turn": t, "number": n} for t in range(1, TURNS + 1) for n in range(1, PARALLEL + 1)]
    assert (job.status, job.result) == (Status.SUCCEEDED, total() - 10)
    assert [rig.model.count(Call("model", turn)) for turn in range(1, TURNS + 2)] == [1] * (TURNS + 1)
    assert rig.model.count(Call("tool", 1, 1)) == 0


def answering(*responses: ModelResponse) -> tuple[FunctionModel, list[int]]:
    """A model that gives these responses in turn, and the number of messages in each request."""
    requests: list[int] = []

    def respond(messages: list[Any], info: AgentInfo) -> ModelResponse:
        requests.append(len(messages))
        return responses[sum(isinstance(one, ModelResponse) for one in messages)]

    return FunctionModel(respond), requests


def calling(*names: str) -> ModelResponse:
    return ModelResponse([ToolCallPart(name, {}, tool_call_id=f"{name}-{i}") for i, name in enumerate(names)])


def saying(text: str) -> ModelResponse:
    return ModelResponse([TextPart(text)])


async def test_outside_of_tasks_an_agent_runs_as_usual() -> None:
    model, requests = answering(saying("hello"))
    agent = Agent(model, name="greeter", capabilities=[InterlockDurability()])
    assert (await agent.run("hi")).output == "hello"
    assert len(requests) == 1


async def test_agents_that_run_concurrently_in_a_job_keep_their_steps_apart(app: DrainedApp) -> None:
    failures = iter([True, False])

    def respond(messages: list[Any], info: AgentInfo) -> ModelResponse:
        asked.append(messages[0].parts[-1].content)
        return saying(f"about {asked[-1]}")

    asked: list[str] = []
    agent = Agent(FunctionModel(respond), name="writer", capabilities=[InterlockDurability()])

    @app.task(max_attempts=2)
    async def write() -> list[str]:
        runs = await asyncio.gather(*(agent.run(topic) for topic in ("cats", "dogs", "owls")))
        if next(failures):
            raise Retry("once", delay=0)
        return [run.output for run in runs]

    handle = await write.enqueue()
    assert await app.finish(handle) == ["about cats", "about dogs", "about owls"]
    assert sorted(asked) == ["cats", "dogs", "owls"]


async def test_the_text_of_the_model_is_streamed_once(app: DrainedApp) -> None:
    async def respond(messages: list[Any], info: AgentInfo) -> AsyncIterator[str]:
        for word in ("one ", "two ", "three"):
            yield word

    failures = iter([True, False])
    durability = InterlockDurability(event_stream_handler=stream_text())
    agent = Agent(FunctionModel(stream_function=respond), name="counter", capabilities=[durability])

    @app.task(max_attempts=2)
    async def count() -> str:
        output = (await agent.run("count")).output
        if next(failures):
            raise Retry("once", delay=0)
        return output

    handle = await count.enqueue()
    assert await app.finish(handle) == "one two three"
    assert "".join([chunk.text or "" async for chunk in handle.stream("text")]) == "one two three"


async def test_a_tool_result_that_is_not_json_fails_the_job_without_a_retry(app: DrainedApp) -> None:
    model, requests = answering(calling("connect"), saying("done"))
    agent = Agent(model, name="broken", capabilities=[InterlockDurability()])

    @agent.tool_plain
    async def connect() -> Any:
        return object()

    @app.task(max_attempts=5)
    async def use() -> str:
        return (await agent.run("go")).output

    handle = await use.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert job.status is Status.FAILED
    assert "invalid_result" in (job.error or "")
    assert len(requests) == 1


async def test_data_of_the_decision_replaces_the_arguments_of_the_call(app: DrainedApp) -> None:
    call = ModelResponse([ToolCallPart("refund", {"amount": 500}, tool_call_id="c1")])
    model, _ = answering(call, saying("refunded"))
    agent = Agent(model, name="clerk", capabilities=[InterlockDurability()])
    refunded = []

    @agent.tool_plain(requires_approval=True)
    async def refund(amount: int) -> str:
        refunded.append(amount)
        return "ok"

    @app.task
    async def serve() -> str:
        return (await agent.run("refund me")).output

    handle = await serve.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert job.approval_id is not None
    await app.approvals.decide(job.approval_id, "approve", data={"amount": 50})
    assert await app.finish(handle) == "refunded"
    assert refunded == [50]


async def test_an_agent_on_another_event_loop_is_rejected_with_the_way_out(app: DrainedApp) -> None:
    model, _ = answering(saying("hello"))
    agent = Agent(model, name="blocking", capabilities=[InterlockDurability()])

    @app.task(max_attempts=1)
    def greet() -> str:
        return asyncio.run(agent.run("hi")).output

    handle = await greet.enqueue()
    await app.drain()
    assert "declare the task with `async def`" in ((await app.job(handle.id)).error or "")


async def test_a_model_request_is_retried_in_the_run_by_its_options(app: DrainedApp) -> None:
    failures = iter([True, True, False])

    def respond(messages: list[Any], info: AgentInfo) -> ModelResponse:
        if next(failures):
            raise RuntimeError("overloaded")
        return saying("at last")

    options = StepOptions(attempts=3, retry=AT_ONCE)
    agent = Agent(FunctionModel(respond), name="patient", capabilities=[InterlockDurability(model=options)])

    @app.task(max_attempts=1)
    async def wait() -> str:
        return (await agent.run("hi")).output

    handle = await wait.enqueue()
    assert await app.finish(handle) == "at last"
