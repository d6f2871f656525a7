"""Durable graphs of LangGraph: finished nodes are not repeated; interrupts wait for people without a worker.

    graph = DurableGraph(builder.compile())

Inside a task, `await graph.ainvoke(...)` is then durable, and `graph.invoke(...)` in one declared with `def`. Outside
of tasks the graph runs as usual.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt

from interlock.integrations.running import job_context, name_of_run, shortened
from interlock.sdk import sync
from interlock.sdk.context import Context
from interlock.sdk.current import running

INTERRUPT: Final = "__interrupt__"  # the channel of LangGraph in which a task reports one
Answer = Callable[[Context, Interrupt, str], Awaitable[Any]]


class DurableGraph:
    """A compiled graph, durable in a task: a later run of the job continues after the last finished node.

    `stream` names a stream of the job, to which the text of models is written while it arrives. An interrupt becomes
    an approval or a question; `answer` replaces that: it gets the context, the interrupt and a name, and returns the
    value with which the graph resumes.
    """

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        *,
        name: str | None = None,
        stream: str | None = None,
        answer: Answer | None = None,
        expires_in: float | timedelta | None = None,
    ) -> None:
        if graph.checkpointer not in (None, False):
            raise ValueError(
                "the graph has a checkpointer: compile it without one; a task keeps the state of its graph itself"
            )
        self.graph, self.name = graph, name or graph.get_name()
        self._stream, self._expires_in = stream, expires_in
        self._answer = answer or self._ask

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the graph to its end and return its state."""
        context = job_context()
        if context is None:
            return await self.graph.ainvoke(input, config, **options)
        name = name_of_run(context, self.name)
        journal = await _Journal.opened(context, name)
        graph = self.graph.copy({"checkpointer": journal})
        own = _config(config, journal, f"{context.id}:{name}")
        if journal.is_empty:
            await self._run(context, graph, input, own, options)
        while True:
            state = await graph.aget_state(own)
            if asked := [(task.id, one) for task in state.tasks for one in task.interrupts]:
                answers = {
                    one.id: await self._answer(
                        context, one, shortened(f"{name}__interrupt/{one.id}/{journal.interrupts[task]}")
                    )
                    for task, one in asked
                }
                await self._run(context, graph, Command(resume=answers), own, options)
            elif state.next:
                await self._run(context, graph, None, own, options)
            else:
                return _output(graph, state.values)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **options: Any) -> Any:
        """Run the graph to its end in a task declared with `def`, and return its state."""
        context = running()
        if context is None:
            return self.graph.invoke(input, config, **options)
        return sync.run(context()._loop_for_blocking(), lambda: self.ainvoke(input, config, **options))

    def stream(self, *args: Any, **options: Any) -> Iterator[Any]:
        """Stream the graph as usual; in a task, raise an error that names the durable way."""
        _reject_in_task("stream")
        return self.graph.stream(*args, **options)

    def astream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """Stream the graph as usual; in a task, raise an error that names the durable way."""
        _reject_in_task("astream")
        return self.graph.astream(*args, **options)

    async def _run(
        self, context: Context, graph: Any, input: Any, config: RunnableConfig, options: Mapping[str, Any]
    ) -> None:
        """Run the graph until it ends or is interrupted. Each checkpoint is saved before the next nodes start."""
        given = {**options, "durability": "sync"}
        if self._stream is None:
            await graph.ainvoke(input, config, **given)
            return
        writer = context.stream(self._stream)
        async for message, _ in graph.astream(input, config, **{**given, "stream_mode": "messages"}):
            if isinstance(message, AIMessageChunk) and message.text:
                writer.write(str(message.text))

    async def _ask(self, context: Context, interrupt: Interrupt, name: str) -> Any:
        """Ask people for what a graph has interrupted itself for.

        A dictionary with `question` is a question, with an optional `schema`; requests of LangChain's human-in-the-loop
        middleware are approvals, one for each tool call. Anything else is an approval, and the graph resumes with true
        or false, or with the data of the decision.
        """
        value = interrupt.value
        if isinstance(value, Mapping) and isinstance(value.get("question"), str):
            schema, details = value.get("schema", {"type": "string"}), value.get("details")
            return await context.ask(
                value["question"], schema=schema, name=name, details=details, expires_in=self._expires_in
            )
        if isinstance(value, Mapping) and isinstance(value.get("action_requests"), Sequence):
            actions = enumerate(value["action_requests"])
            return {"decisions": [await self._review(context, one, f"{name}/{number}") for number, one in actions]}
        details = None if isinstance(value, str) else value
        prompt = value if isinstance(value, str) else f"{self.name} waits for a decision"
        result = await context.approve(
            prompt, name=name, details=details, on_deny="resume", expires_in=self._expires_in
        )
        return result.approved if not result.approved or result.data is None else result.data

    async def _review(self, context: Context, action: Mapping[str, Any], name: str) -> dict[str, Any]:
        tool, arguments = str(action.get("name")), action.get("args", {})
        result = await context.approve(
            f"{self.name} wants to call {tool}",
            name=shortened(name),
            details={"graph": self.name, "tool": tool, "arguments": arguments},
            on_deny="resume",
            expires_in=self._expires_in,
        )
        if result.denied:
            return {"type": "reject", "message": result.comment or "The call was denied."}
        if result.data:
            return {"type": "edit", "edited_action": {"name": tool, "args": result.data}}
        return {"type": "approve"}


class _Journal(InMemorySaver):
    """The checkpoints of one run of a graph. Each change is a step of the job, from which a later run rebuilds them."""

    def __init__(self, context: Context, name: str) -> None:
        super().__init__()
        self._context, self._prefix = context, f"{shortened(name)[:160]}__state/"
        self._changes = 0
        self.interrupts: Counter[str] = Counter()  # how often each task has been interrupted
        self.usage = _Usage()

    @property
    def is_empty(self) -> bool:
        return self._changes == 0

    @classmethod
    async def opened(cls, context: Context, name: str) -> _Journal:
        """Return a journal with what earlier runs have saved."""
        journal = cls(context, name)
        for recorded in context._memory.names(journal._prefix):
            change = await context.step(recorded, _never)
            journal._changes = max(journal._changes, int(recorded.removeprefix(journal._prefix)))
            context.usage(**change.pop("usage"))
            journal._repeat(change)
        return journal

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        stored = super().put(config, checkpoint, metadata, new_versions)
        values = {name: one for name, one in checkpoint["channel_values"].items() if name in new_versions}
        await self._save("checkpoint", (config["configurable"], {**checkpoint, "channel_values": values}, metadata))
        return stored

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        self._write(config, writes, task_id, task_path)
        await self._save("writes", (config["configurable"], list(writes), task_id, task_path))

    def _write(self, config: Any, writes: Any, task_id: str, task_path: str) -> None:
        super().put_writes(config, writes, task_id, task_path)
        self.interrupts[task_id] += any(channel == INTERRUPT for channel, _ in writes)

    async def _save(self, kind: str, content: tuple[Any, ...]) -> None:
        configurable, *rest = content
        place = {name: configurable[name] for name in _PLACE if name in configurable}
        format, data = self.serde.dumps_typed([place, *rest])
        usage = self.usage.taken()
        change = {"kind": kind, "format": format, "data": b64encode(data).decode(), "usage": usage}

        async def changed() -> Any:
            return change

        self._changes += 1
        self._context.usage(**usage)
        await self._context.step(f"{self._prefix}{self._changes}", changed)

    def _repeat(self, change: Mapping[str, Any]) -> None:
        place, *rest = self.serde.loads_typed((change["format"], b64decode(change["data"])))
        config: Any = {"configurable": place}
        if change["kind"] == "writes":
            self._write(config, *rest)
            return
        checkpoint, metadata = rest
        previous = self._channel_versions(place)
        versions = checkpoint["channel_versions"]
        changed = {name: version for name, version in versions.items() if previous.get(name) != version}
        super().put(config, checkpoint, metadata, changed)

    def _channel_versions(self, place: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the versions of the checkpoint from which the next one was made."""
        found = self.get_tuple({"configurable": dict(place)}) if "checkpoint_id" in place else None
        return {} if found is None else found.checkpoint["channel_versions"]


_PLACE: Final = ("thread_id", "checkpoint_ns", "checkpoint_id")


class _Usage(BaseCallbackHandler):
    """Counts the usage of models until it is saved with the next change."""

    run_inline = True

    def __init__(self) -> None:
        self._amounts: Counter[str] = Counter()

    def on_llm_end(self, response: LLMResult, **kwargs: Any) -> None:
        self._amounts["requests"] += 1
        for generation in response.generations[0]:
            message = getattr(generation, "message", None)
            used = message.usage_metadata if isinstance(message, AIMessage) else None
            if used is not None:
                cached = used.get("input_token_details", {})
                self._amounts["input_tokens"] += used["input_tokens"]
                self._amounts["output_tokens"] += used["output_tokens"]
                self._amounts["cache_read_tokens"] += cached.get("cache_read") or 0
                self._amounts["cache_write_tokens"] += cached.get("cache_creation") or 0

    def taken(self) -> dict[str, int]:
        """Return the amounts since the last call."""
        amounts, self._amounts = self._amounts, Counter()
        return {name: amount for name, amount in amounts.items() if amount}


def _reject_in_task(method: str) -> None:
    if running() is not None:
        raise RuntimeError(
            f"{method} is not available in a task, because a saved checkpoint has no parts: use DurableGraph(…, "
            "stream=NAME) and ainvoke, which write the text of models to a stream of the job"
        )


def _config(given: RunnableConfig | None, journal: _Journal, thread_id: str) -> RunnableConfig:
    config: Any = {**(given or {})}
    configurable = {**config.get("configurable", {}), "thread_id": thread_id}
    callbacks = config.get("callbacks")
    if callbacks is not None and not isinstance(callbacks, list):
        callbacks = callbacks.copy()
        callbacks.add_handler(journal.usage, inherit=True)
    else:
        callbacks = [*(callbacks or ()), journal.usage]
    config |= {"configurable": configurable, "callbacks": callbacks}
    own: RunnableConfig = config
    return own


def _output(graph: Any, values: Any) -> Any:
    """Return the output of a state, which may have fewer channels."""
    channels = graph.output_channels
    if isinstance(channels, str) or not isinstance(values, Mapping):
        return values if not isinstance(values, Mapping) else values.get(channels)
    return {name: values[name] for name in channels if name in values}


async def _never() -> Any:
    raise AssertionError("a recorded step is not run again")
