"""Graphs of LangGraph in tasks: nothing that was finished is repeated, interrupts wait without a worker."""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

from interlock import Retry
from interlock.domain.lifecycle import Status
from interlock.integrations.langgraph import DurableGraph
from tests.integrations.conftest import DrainedApp
from tests.integrations.kills import AT_ONCE, KILLS, Rig, check_calls, rigged
from tests.integrations.model_server import TURNS, ModelServer, tokens, total


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


@pytest.fixture
async def rig(url: str, model: ModelServer, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged("tests.integrations.langgraph_tasks", url, model, tmp_path) as made:

        @made.app.task(max_attempts=100, backoff=AT_ONCE)
        async def add_up(question: str) -> int:
            return 0

        yield made


async def test_a_killed_worker_repeats_no_finished_model_request_or_tool_call(rig: Rig) -> None:
    job = await rig.run("add_up", question="How many?", kills=KILLS)
    assert (job.status, job.result) == (Status.SUCCEEDED, total()), (job.error, rig.kills)
    check_calls(rig.model.calls)
    assert job.usage == {"requests": TURNS + 1, **tokens()}


def chain(*nodes: Any, **options: Any) -> DurableGraph:
    """A graph of nodes in a row."""
    builder = StateGraph(State)
    names = [node.__name__ for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for before, after in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(before, after)
    return DurableGraph(builder.compile(name="chain"), **options)


async def test_a_node_that_failed_runs_again_and_the_finished_ones_do_not(app: DrainedApp) -> None:
    ran: list[str] = []

    async def first(state: State) -> State:
        ran.append("first")
        return {"log": ["first"]}

    async def second(state: State) -> State:
        ran.append("second")
        if ran.count("second") < 3:
            raise Retry("busy", delay=1)
        return {"log": [*state["log"], "second"]}

    graph = chain(first, second)

    @app.task
    async def work() -> list[str]:
        return list((await graph.ainvoke({"log": ["in"]}))["log"])

    assert await app.finish(await work.enqueue()) == ["in", "first", "in", "first", "second"]
    assert ran == ["first", "second", "second", "second"]
    assert (await graph.ainvoke({"log": []}))["log"] == ["first", "first", "second"]  # outside of a task


async def decide(app: DrainedApp, decision: Any, **options: Any) -> Any:
    (approval,) = await app.approvals.list(status="open")
    await app.approvals.decide(approval.id, decision, **options)
    return approval


async def test_interrupts_are_approvals_and_questions_and_resume_the_graph(app: DrainedApp) -> None:
    ran: list[str] = []

    async def think(state: State) -> State:
        ran.append("think")
        return {"log": ["thought"]}

    async def ask(state: State) -> State:
        may = interrupt("Deploy?")
        really = interrupt("Really?")
        schema = {"type": "object", "properties": {"branch": {"type": "string"}}, "required": ["branch"]}
        answer = interrupt({"question": "Which branch?", "schema": schema})
        return {"log": [may, really, answer]}

    graph = chain(think, ask)

    @app.task
    async def work() -> list[Any]:
        return list((await graph.ainvoke({"log": []}))["log"])

    handle = await work.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status is Status.WAITING_FOR_APPROVAL
    assert (await decide(app, "approve")).prompt == "Deploy?"
    await app.drain()
    assert (await decide(app, "deny")).prompt == "Really?"
    await app.drain()
    question = await decide(app, "approve", data={"branch": "main"})
    assert (question.prompt, question.kind) == ("Which branch?", "question")
    assert await app.finish(handle) == ["thought", True, False, {"branch": "main"}]
    assert ran == ["think"]


async def test_tool_calls_under_review_are_approvals_each(app: DrainedApp) -> None:
    async def review(state: State) -> State:
        actions = [{"name": "send", "args": {"to": to}} for to in ("a", "b", "c")]
        return {"log": interrupt({"action_requests": actions, "review_configs": []})["decisions"]}

    graph = chain(review)

    @app.task
    async def work() -> list[Any]:
        return list((await graph.ainvoke({"log": []}))["log"])

    handle = await work.enqueue()
    for decision, options in (("approve", {}), ("deny", {"comment": "no"}), ("approve", {"data": {"to": "d"}})):
        await app.drain()
        approval = await decide(app, decision, **options)
        assert approval.prompt == "chain wants to call send"
    assert await app.finish(handle) == [
        {"type": "approve"},
        {"type": "reject", "message": "no"},
        {"type": "edit", "edited_action": {"name": "send", "args": {"to": "d"}}},
    ]


async def test_parallel_interrupts_are_decided_one_by_one(app: DrainedApp) -> None:
    def asking(name: str) -> Any:
        async def node(state: State) -> State:
            return {"log": [(name, interrupt(name))]}

        return node

    builder = StateGraph(State)
    for name in ("a", "b"):
        builder.add_node(name, asking(name))
        builder.add_edge(START, name)
    graph = DurableGraph(builder.compile())

    @app.task
    async def work() -> list[Any]:
        return list((await graph.ainvoke({"log": []}))["log"])

    handle = await work.enqueue()
    for _ in range(2):
        await app.drain()
        approval = (await app.approvals.list(status="open"))[0]
        await app.approvals.decide(approval.id, "approve" if approval.prompt == "a" else "deny")
    assert await app.finish(handle) == [["a", True], ["b", False]]


async def test_an_own_answer_replaces_the_approval(app: DrainedApp) -> None:
    async def ask(state: State) -> State:
        return {"log": [interrupt(7)]}

    async def double(context: Any, one: Any, name: str) -> Any:
        return await context.step(name, lambda: 2 * one.value)

    graph = chain(ask, answer=double)

    @app.task
    async def work() -> list[Any]:
        return list((await graph.ainvoke({"log": []}))["log"])

    assert await app.finish(await work.enqueue()) == [14]


async def test_text_of_models_is_streamed_and_two_runs_in_a_job_are_kept_apart(app: DrainedApp) -> None:
    model = GenericFakeChatModel(messages=iter([AIMessage("Hello there"), AIMessage("Good bye")]))

    async def talk(state: State) -> State:
        return {"log": [(await model.ainvoke("Hi")).content]}

    graph = chain(talk, stream="text")

    @app.task
    async def work() -> list[Any]:
        first = await graph.ainvoke({"log": []})
        return [*first["log"], *(await graph.ainvoke({"log": []}))["log"]]

    handle = await work.enqueue()
    assert await app.finish(handle) == ["Hello there", "Good bye"]
    text = "".join([str(chunk.text) async for chunk in handle.stream("text")])
    assert text == "Hello thereGood bye"
    assert (await handle.refresh()).usage == {"requests": 2}


async def test_a_synchronous_task_runs_a_graph_that_waits_for_an_approval(app: DrainedApp) -> None:
    ran: list[str] = []

    def think(state: State) -> State:
        ran.append("think")
        return {"log": ["thought"]}

    def ask(state: State) -> State:
        return {"log": [interrupt("Deploy?")]}

    graph = chain(think, ask)

    @app.task
    def work() -> list[Any]:
        return list(graph.invoke({"log": []})["log"])

    handle = await work.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status is Status.WAITING_FOR_APPROVAL
    await decide(app, "approve")
    assert await app.finish(handle) == ["thought", True]
    assert ran == ["think"]
    assert chain(think).invoke({"log": []}) == {"log": ["thought"]}  # outside of a task


async def test_a_graph_that_would_not_be_durable_is_rejected_with_the_way_out(app: DrainedApp) -> None:
    async def first(state: State) -> State:
        return {"log": ["first"]}

    graph = chain(first)

    @app.task(max_attempts=1)
    async def work() -> list[Any]:
        return [one async for one in graph.astream({"log": []})]

    handle = await work.enqueue()
    await app.drain()
    assert "astream is not available in a task" in ((await app.job(handle.id)).error or "")
    assert [one async for one in graph.astream({"log": []})] == [{"first": {"log": ["first"]}}]


def test_a_graph_with_a_checkpointer_is_rejected() -> None:
    builder = StateGraph(State)
    builder.add_node("a", lambda state: state)
    builder.add_edge(START, "a")
    with pytest.raises(ValueError, match="checkpointer"):
        DurableGraph(builder.compile(checkpointer=InMemorySaver()))
