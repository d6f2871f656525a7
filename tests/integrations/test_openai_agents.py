"""Agents of the OpenAI Agents SDK in tasks: nothing that was finished is repeated, approvals wait without a worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, SQLiteSession, Usage, function_tool, handoff, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

from interlock import Backoff, Retry
from interlock.domain.lifecycle import Status
from interlock.integrations.openai_agents import DurableRunner
from interlock.integrations.running import StepOptions
from tests.integrations.conftest import DrainedApp
from tests.integrations.kills import AT_ONCE, KILLS, Rig, check_calls, rigged
from tests.integrations.model_server import PARALLEL, TURNS, Call, ModelServer, tokens, total

set_tracing_disabled(True)


@pytest.fixture
async def rig(url: str, model: ModelServer, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged("tests.integrations.openai_agents_tasks", url, model, tmp_path) as made:

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


async def test_each_tool_call_that_needs_approval_waits_without_a_worker(rig: Rig) -> None:
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


def saying(text: str) -> ModelStep:
    return ModelStep(output=[assistant_message(text)], usage=Usage(requests=1, input_tokens=7, output_tokens=3))


def calling(name: str, arguments: dict[str, Any], call_id: str) -> ModelStep:
    return ModelStep(output=[function_call(name, arguments, call_id=call_id)])


async def test_outside_of_tasks_an_agent_runs_as_usual() -> None:
    agent = Agent(name="greeter", model=ScriptedModel([saying("hello")]))
    assert (await DurableRunner.run(agent, "hi")).final_output == "hello"


async def test_agents_that_run_concurrently_in_a_job_keep_their_steps_apart(app: DrainedApp) -> None:
    failures = iter([True, False])
    asked: list[Any] = []

    def respond(call: Any) -> ModelStep:
        asked.append(call.input[-1]["content"] if isinstance(call.input, list) else call.input)
        return saying(f"about {asked[-1]}")

    # Three steps only: a repeated request would find none.
    agent = Agent(name="writer", model=ScriptedModel([ModelStep.respond(respond) for _ in range(3)]))

    @app.task(max_attempts=2)
    async def write() -> list[str]:
        runs = await asyncio.gather(*(DurableRunner.run(agent, topic) for topic in ("cats", "dogs", "owls")))
        if next(failures):
            raise Retry("once", delay=0)
        return [run.final_output for run in runs]

    handle = await write.enqueue()
    assert await app.finish(handle) == ["about cats", "about dogs", "about owls"]
    assert sorted(asked) == ["cats", "dogs", "owls"]


async def test_models_tools_and_handoffs_of_a_cycle_of_agents_are_durable(app: DrainedApp) -> None:
    failures, called = iter([True, False]), []
    first = Agent[Any](name="first")
    second = Agent[Any](name="second", handoffs=[first])
    first.handoffs = [handoff(second)]

    @function_tool
    def look(place: str) -> str:
        called.append(place)
        return f"seen {place}"

    second.tools = [look]
    steps = [calling("transfer_to_second", {}, "c1"), calling("look", {"place": "shed"}, "c2"), saying("found it")]
    script = ScriptedModel(steps)

    @app.task(max_attempts=2)
    async def search() -> list[str]:
        result = await DurableRunner.run(first, "find it", run_config=RunConfig(model=script))
        if next(failures):
            raise Retry("once", delay=0)
        return [result.final_output, result.last_agent.name]

    handle = await search.enqueue()
    assert await app.finish(handle) == ["found it", "second"]
    assert called == ["shed"]


async def test_the_text_of_the_model_is_streamed_once(app: DrainedApp) -> None:
    failures = iter([True, False])
    agent = Agent(name="counter", model=ScriptedModel([saying("one two three")]))

    @app.task(max_attempts=2)
    async def count() -> str:
        output = (await DurableRunner.run(agent, "count", stream="text")).final_output
        if next(failures):
            raise Retry("once", delay=0)
        return str(output)

    handle = await count.enqueue()
    assert await app.finish(handle) == "one two three"
    assert "".join([chunk.text or "" async for chunk in handle.stream("text")]) == "one two three"
    assert (await handle.refresh()).usage == {"requests": 1, "input_tokens": 7, "output_tokens": 3}


async def test_data_of_the_decision_replaces_the_arguments_of_the_call(app: DrainedApp) -> None:
    refunded = []

    @function_tool(needs_approval=True)
    async def refund(amount: int) -> str:
        refunded.append(amount)
        return "ok"

    script = ScriptedModel([calling("refund", {"amount": 500}, "c1"), saying("refunded")])
    agent = Agent(name="clerk", model=script, tools=[refund])

    @app.task
    async def serve() -> str:
        return str((await DurableRunner.run(agent, "refund me")).final_output)

    handle = await serve.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert job.approval_id is not None
    await app.approvals.decide(job.approval_id, "approve", data={"amount": 50})
    assert await app.finish(handle) == "refunded"
    assert refunded == [50]


async def test_a_synchronous_task_runs_an_agent_that_waits_for_an_approval(app: DrainedApp) -> None:
    @function_tool(needs_approval=True)
    async def refund(amount: int) -> str:
        return f"refunded {amount}"

    script = ScriptedModel([calling("refund", {"amount": 5}, "c1"), saying("done")])
    agent = Agent(name="clerk", model=script, tools=[refund])

    @app.task
    def serve() -> str:
        return str(DurableRunner.run_sync(agent, "refund me").final_output)

    handle = await serve.enqueue()
    await app.drain()
    job = await app.job(handle.id)
    assert job.status is Status.WAITING_FOR_APPROVAL, job.error
    assert job.approval_id is not None
    await app.approvals.decide(job.approval_id, "approve")
    assert await app.finish(handle) == "done"


async def test_events_of_a_run_are_streamed_outside_of_tasks_and_rejected_in_one(app: DrainedApp) -> None:
    agent = Agent(name="counter", model=ScriptedModel([saying("one")]))
    streamed = DurableRunner.run_streamed(agent, "count")
    assert [event async for event in streamed.stream_events()]
    assert streamed.final_output == "one"

    @app.task(max_attempts=1)
    async def count() -> str:
        return str(DurableRunner.run_streamed(agent, "count").final_output)

    handle = await count.enqueue()
    await app.drain()
    assert "use run(…, stream=NAME)" in ((await app.job(handle.id)).error or "")


async def test_a_session_in_a_task_is_rejected_with_the_way_out(app: DrainedApp) -> None:
    agent = Agent(name="chatty", model=ScriptedModel([saying("hello")]))

    @app.task(max_attempts=1)
    async def chat() -> str:
        return str((await DurableRunner.run(agent, "hi", session=SQLiteSession("s"))).final_output)

    handle = await chat.enqueue()
    await app.drain()
    assert "pass the earlier items as input" in ((await app.job(handle.id)).error or "")


async def test_a_model_request_is_retried_in_the_run_by_its_options(app: DrainedApp) -> None:
    overloaded = ModelStep.raise_error(RuntimeError("overloaded"))
    agent = Agent(name="patient", model=ScriptedModel([overloaded, overloaded, saying("at last")]))
    options = StepOptions(attempts=3, retry=Backoff("fixed", base=0))

    @app.task(max_attempts=1)
    async def wait() -> str:
        return str((await DurableRunner.run(agent, "hi", model=options)).final_output)

    handle = await wait.enqueue()
    assert await app.finish(handle) == "at last"
