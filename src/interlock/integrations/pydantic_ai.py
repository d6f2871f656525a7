"""Durable agents of Pydantic AI: model requests and tool calls are steps; approvals wait without a worker.

    agent = Agent("openai:gpt-5", name="researcher", capabilities=[InterlockDurability()])

Inside a task, `await agent.run(...)` is then durable. Outside of tasks the agent runs as usual.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pydantic_ai import (
    AgentStreamEvent,
    DeferredToolRequests,
    DeferredToolResults,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    RunContext,
    TextPart,
    TextPartDelta,
    ToolApproved,
    ToolDenied,
)
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    DurableOperationId,
    JournalCallableOperationBackend,
    ModelCompactMessagesId,
    ModelRequestId,
    RoleBasedOperationConfig,
    ToolsetCallToolId,
    ToolsetValidateToolArgumentsId,
    conversation_id_from_run_id,
)
from pydantic_ai.models import Model

from interlock.integrations.running import (
    StepOptions,
    job_context,
    number_of_run,
    report_usage,
    run_step,
    shortened,
)
from interlock.sdk.context import Context
from interlock.sdk.current import running
from interlock.sdk.exceptions import Fail, Suspended


class InterlockDurability(BaseDurabilityCapability[Any]):
    """Make an agent durable when it runs in a task: a later run of the job continues after the last saved step.

    `model` and `tool` are options of the steps. Tools that require approval request one of Interlock, unless
    `approvals` is false; data of the decision replaces the arguments of the call.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Interlock",
        durable_unit_noun="step",
        durable_container_noun="task",
        codec=JSON_CODEC,
        serialization_failure=lambda error: Fail(f"a result is not JSON: {error}", kind="invalid_result"),
        cancellation_error_types=(Suspended,),
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[Any] | None = None,
        name: str | None = None,
        model: StepOptions | None = None,
        tool: StepOptions | None = None,
        approvals: bool = True,
        approval_expires_in: float | timedelta | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options, self._tool_options = model or StepOptions(), tool or StepOptions()
        self._requests_approvals, self._approval_expires_in = approvals, approval_expires_in
        self._backend: _StepBackend | None = None

    @property
    def in_durable_context(self) -> bool:
        return job_context() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[StepOptions]:
        assert self._backend is not None, "the capability is not bound to an agent"
        return self._backend

    def get_default_run_id(self) -> str | None:
        """Return the same ID in every run of the job: the runs of an agent are numbered."""
        context = job_context()
        if context is None:
            return None
        return f"{context.id}:{self.name}:{number_of_run(context, self.name)}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        context = job_context()
        if context is None:
            return None
        started = await run_step(context, f"{self.name}__start{_number(context, run_id)}", _now)
        return datetime.fromisoformat(started)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        context = job_context()
        if context is None or not self._requests_approvals or not requests.approvals:
            return None
        decided: dict[str, ToolApproved | ToolDenied] = {}
        for call in requests.approvals:
            details = {"agent": self.name, "tool": call.tool_name, "arguments": call.args_as_dict()}
            if metadata := requests.metadata.get(call.tool_call_id):
                details["metadata"] = metadata
            result = await context.approve(
                f"{self.name} wants to call {call.tool_name}",
                name=shortened(f"{self.name}__approve{_number(context, ctx.run_id)}/{call.tool_call_id}"),
                details=details,
                on_deny="resume",
                expires_in=self._approval_expires_in,
            )
            if result.approved:
                decided[call.tool_call_id] = ToolApproved(override_args=result.data or None)
            else:
                decided[call.tool_call_id] = ToolDenied(result.comment or ToolDenied().message)
        return requests.build_results(approvals=decided)

    def _bind_to_agent(self, agent: AbstractAgent[Any, Any]) -> None:
        options = RoleBasedOperationConfig(
            model=self._model_options,
            event=StepOptions(),
            capability=StepOptions(),
            tool=self._tool_options,
        )
        self._backend = _StepBackend(agent_name=self.name, default_model_id=self.default_model_id, config=options)
        if self._event_stream_handler is not None:
            self._bound_event_operation = self._bind_event_operation(self._backend)
        self._register_toolsets(agent)


def stream_text(name: str = "text") -> EventStreamHandler[Any]:
    """Return an event stream handler that writes the text of the model to a stream of the job, as it arrives."""

    async def write(ctx: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        context = running()
        async for event in events:
            text = _text_of(event)
            if context is not None and text:
                context().stream(name).write(text)

    return write


def _text_of(event: AgentStreamEvent) -> str:
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    if isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        return event.delta.content_delta
    return ""


class _StepBackend(JournalCallableOperationBackend[StepOptions]):
    """Runs each operation of an agent as a step."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        context = job_context()
        if context is None:
            return await body()
        run = next((one for one in cache_key if isinstance(one, RunContext)), None)
        if run is not None:
            name += _number(context, run.run_id)
            # Calls of a turn run concurrently, in any order: the ID says which one this is.
            if isinstance(operation_id, ToolsetCallToolId | ToolsetValidateToolArgumentsId) and run.tool_call_id:
                name += f"/{run.tool_call_id}"
        result = await run_step(context, name, body, config)
        if isinstance(operation_id, ModelRequestId | ModelCompactMessagesId):
            used = JSON_CODEC.load(ModelResponse, result).usage
            report_usage(
                context,
                requests=1,
                input_tokens=used.input_tokens,
                output_tokens=used.output_tokens,
                cache_read_tokens=used.cache_read_tokens,
                cache_write_tokens=used.cache_write_tokens,
            )
        return result


def _number(context: Context, run_id: str | None) -> str:
    """Return what tells several runs of an agent in one job apart: nothing for the first."""
    own, _, number = (run_id or "").rpartition(":")
    return f"#{number}" if own.startswith(f"{context.id}:") and number != "1" else ""


async def _now() -> str:
    return datetime.now(UTC).isoformat()
