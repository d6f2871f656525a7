"""Durable agents of the OpenAI Agents SDK: model requests and tool calls are steps; approvals wait without a worker.

    from interlock.integrations.openai_agents import DurableRunner as Runner

Inside a task, `await Runner.run(agent, ...)` is then durable. Outside of tasks the agent runs as usual.
"""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agents import (
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    RunConfig,
    Runner,
    RunResult,
    RunResultStreaming,
    Tool,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    Usage,
)
from agents.items import ToolApprovalItem, TResponseStreamEvent
from agents.tool_context import ToolContext
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent
from pydantic import TypeAdapter

from interlock.integrations.running import (
    StepOptions,
    job_context,
    name_of_run,
    report_usage,
    run_step,
    shortened,
)
from interlock.sdk import sync
from interlock.sdk.context import Context
from interlock.sdk.current import current, running

_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class DurableRunner:
    """`Runner` of the OpenAI Agents SDK, durable in a task: a later run continues after the last saved step."""

    @classmethod
    async def run(
        cls,
        starting_agent: Agent[Any],
        input: Any,
        *,
        run_config: RunConfig | dict[str, Any] | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        approval_expires_in: float | timedelta | None = None,
        stream: str | None = None,
        **options: Any,
    ) -> RunResult:
        """Run an agent until it has a final output.

        `model` and `tool` are options of the steps. Tools that need approval request one of Interlock; data of the
        decision replaces the arguments of the call. `stream` names a stream of the job, to which the text of the model
        is written while it arrives. Other options are those of `Runner.run`.
        """
        context = job_context()
        if context is None:
            return await Runner.run(starting_agent, input, run_config=run_config, **options)
        if options.get("session") is not None:
            raise ValueError("a session is not supported in a task, because a later run would add its items again: "
                             "pass the earlier items as input")  # fmt: skip
        run = _Run(context, starting_agent.name, model or StepOptions(), tool or StepOptions(), stream)
        given = RunConfig(**run_config) if isinstance(run_config, dict) else run_config or RunConfig()
        agent, config = run.agent(starting_agent), run.config(given)
        result = await Runner.run(agent, input, run_config=config, **options)
        while result.interruptions:
            state = result.to_state()
            for item in result.interruptions:
                decision = await run.decision(item, approval_expires_in)
                if decision.approved:
                    state.approve(item)
                else:
                    state.reject(item, rejection_message=decision.comment or None)
            result = await Runner.run(agent, state, run_config=config, **options)
        return result

    @classmethod
    def run_sync(cls, starting_agent: Agent[Any], input: Any, **options: Any) -> RunResult:
        """Run an agent in a task declared with `def`; the options are those of `run`."""
        context = running()
        if context is None:
            return Runner.run_sync(starting_agent, input, **options)
        return sync.run(context()._loop_for_blocking(), lambda: cls.run(starting_agent, input, **options))

    @classmethod
    def run_streamed(cls, *args: Any, **options: Any) -> RunResultStreaming:
        """Run an agent as usual; in a task, raise an error that names the durable way."""
        if running() is not None:
            raise RuntimeError("run_streamed is not available in a task, because a saved response has no parts: "
                               "use run(…, stream=NAME), which writes the text to a stream of the job")  # fmt: skip
        return Runner.run_streamed(*args, **options)


class _Run:
    """One run of an agent in a job: its steps have the same names in every run of the job."""

    def __init__(self, context: Context, name: str, model: StepOptions, tool: StepOptions, stream: str | None) -> None:
        self.context, self.stream = context, stream
        self.name = name_of_run(context, name)
        self._model_options, self._tool_options = model, tool
        self._agents: dict[int, tuple[Agent[Any], Agent[Any]]] = {}  # originals, kept alive, and their copies
        self._tools: dict[int, tuple[Tool, Tool]] = {}
        self._arguments: dict[str, str] = {}  # that a decision has replaced, by the ID of the call

    def config(self, given: RunConfig) -> RunConfig:
        model = _DurableModel(given.model, self) if isinstance(given.model, Model) else given.model
        return replace(given, model=model, model_provider=_DurableProvider(given.model_provider, self))

    def agent(self, original: Agent[Any]) -> Agent[Any]:
        """Return a copy whose model, tools and handoffs are durable; each agent of a cycle is copied once."""
        if known := self._agents.get(id(original)):
            return known[1]
        durable = copy.copy(original)
        self._agents[id(original)] = (original, durable)
        self._agents[id(durable)] = (durable, durable)
        if isinstance(original.model, Model):
            durable.model = _DurableModel(original.model, self)
        durable.handoffs = [self._handoff(one) for one in original.handoffs]

        async def get_all_tools(run_context: Any) -> list[Tool]:
            return [self._tool(one) for one in await original.get_all_tools(run_context)]

        # An attribute of the object: a subclass would lose what the class of the original overrides.
        object.__setattr__(durable, "get_all_tools", get_all_tools)
        return durable

    async def decision(self, item: ToolApprovalItem, expires_in: float | timedelta | None) -> Any:
        arguments = item.arguments or "{}"
        result = await self.context.approve(
            f"{item.agent.name} wants to call {item.name}",
            name=shortened(f"{self.name}__approve/{item.call_id}"),
            details={"agent": item.agent.name, "tool": item.name, "arguments": _json_or_text(arguments)},
            on_deny="resume",
            expires_in=expires_in,
        )
        if result.approved and result.data and item.call_id:
            self._arguments[item.call_id] = json.dumps(result.data)
        return result

    async def respond(self, body: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        async def request() -> Any:
            # Members under their own names, and only those that were set: else the SDK takes some for unknown ones.
            return _RESPONSE.dump_python(await body(), mode="json", by_alias=True, exclude_unset=True)

        saved = await run_step(self.context, f"{self.name}__model", request, self._model_options)
        response = _RESPONSE.validate_python(saved)
        used = response.usage
        report_usage(
            self.context,
            requests=used.requests or 1,
            input_tokens=used.input_tokens,
            output_tokens=used.output_tokens,
            cache_read_tokens=used.input_tokens_details.cached_tokens or 0,
        )
        return response

    def _handoff(self, original: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if isinstance(original, Agent):
            return self.agent(original)

        async def on_invoke_handoff(run_context: Any, arguments: str) -> Agent[Any]:
            return self.agent(await original.on_invoke_handoff(run_context, arguments))

        return replace(original, on_invoke_handoff=on_invoke_handoff)

    def _tool(self, original: Tool) -> Tool:
        """Return a function tool whose calls are steps. Other tools are run by the SDK or the provider of the model."""
        if not isinstance(original, FunctionTool):
            return original
        if known := self._tools.get(id(original)):
            return known[1]
        invoke, has_schema = original.on_invoke_tool, original.output_json_schema is not None

        async def on_invoke_tool(tool_context: ToolContext[Any], arguments: str) -> Any:
            given = self._arguments.get(tool_context.tool_call_id, arguments)

            async def call() -> Any:
                return _jsonable(await invoke(tool_context, given), has_schema=has_schema)

            # Calls of a turn run concurrently, in any order: the ID says which one this is.
            name = f"{self.name}__{original.name}/{tool_context.tool_call_id}"
            return await run_step(self.context, name, call, self._tool_options)

        durable = copy.copy(original)
        durable.on_invoke_tool = on_invoke_tool
        self._tools[id(original)] = (original, durable)
        return durable


class _DurableModel(Model):
    """A model whose responses are steps."""

    def __init__(self, model: Model, run: _Run) -> None:
        self._model, self._run = model, run

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        if job_context() is None:  # an agent in a tool is part of the step of that tool
            return await self._model.get_response(*args, **kwargs)
        if self._run.stream is None:
            return await self._run.respond(lambda: self._model.get_response(*args, **kwargs))
        return await self._run.respond(lambda: self._streamed(self._model.stream_response(*args, **kwargs)))

    def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        return self._model.stream_response(*args, **kwargs)

    def get_retry_advice(self, request: Any) -> Any:
        return self._model.get_retry_advice(request)

    async def close(self) -> None:
        await self._model.close()

    async def _streamed(self, events: AsyncIterator[TResponseStreamEvent]) -> ModelResponse:
        writer = current().stream(self._run.stream or "")
        completed = None
        async with aclosing(events) as received:  # type: ignore[type-var]
            async for event in received:
                if isinstance(event, ResponseTextDeltaEvent):
                    writer.write(event.delta)
                elif isinstance(event, ResponseCompletedEvent):
                    completed = event.response
        if completed is None:
            raise RuntimeError("the model ended its response without completing it: expected response.completed")
        used = completed.usage
        usage = Usage(requests=1) if used is None else Usage(
            requests=1, input_tokens=used.input_tokens, input_tokens_details=used.input_tokens_details,
            output_tokens=used.output_tokens, output_tokens_details=used.output_tokens_details,
            total_tokens=used.total_tokens,
        )  # fmt: skip
        return ModelResponse(output=completed.output, usage=usage, response_id=completed.id)


class _DurableProvider(ModelProvider):
    """Looks models up by name, and makes them durable."""

    def __init__(self, provider: ModelProvider, run: _Run) -> None:
        self._provider, self._run = provider, run

    def get_model(self, model_name: str | None) -> Model:
        return _DurableModel(self._provider.get_model(model_name), self._run)

    async def aclose(self) -> None:
        await self._provider.aclose()


def _jsonable(result: Any, *, has_schema: bool) -> Any:
    """Return the output of a tool as JSON: objects that the SDK would turn into text are turned into the same text."""
    if has_schema or isinstance(result, list | dict | ToolOutputText | ToolOutputImage | ToolOutputFileContent):
        return _ANY.dump_python(result, mode="json", exclude_none=True, fallback=str)
    return result if result is None or isinstance(result, str | int | float | bool) else str(result)


def _json_or_text(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
