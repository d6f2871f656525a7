"""The task behind `interlock agent run`: run the command for a job, and turn its end into the end of the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

import jsonschema_rs

from interlock.agent_cli.adapter import UNSET, Adapter, Note, Outcome, Setup, ToolCall
from interlock.agent_cli.claude import Claude
from interlock.agent_cli.codex import Codex
from interlock.agent_cli.gemini import Gemini
from interlock.agent_cli.plain import USAGE, Plain
from interlock.agent_cli.process import Exit, Idle, base_environment, end_marked, run_command
from interlock.agent_cli.usage import UsageNotes
from interlock.agent_cli.work_directory import WorkDirectory, argument, prompt_of
from interlock.errors import ArtifactsNotConfigured, Error, Forbidden, Invalid, TooLarge
from interlock.sdk import serialization
from interlock.sdk.app import App
from interlock.sdk.context import Context
from interlock.sdk.exceptions import BudgetExceeded, Fail, RateLimited, Release, Retry
from interlock.sdk.signature import Signature
from interlock.sdk.tasks import Task

ADAPTERS: Final[Mapping[str, Callable[[Setup], Adapter]]] = {
    "claude": Claude, "codex": Codex, "gemini": Gemini, "plain": Plain,
}  # fmt: skip
CUMULATIVE: Final = frozenset({"codex"})  # report the usage of the whole session, not of the run
APPROVING: Final = frozenset({"claude"})
CAPPED: Final = frozenset({"claude"})  # can end by themselves when a run has cost too much
CONTINUE: Final = "Continue from where you left off."
MAX_EVENTS: Final = 500  # of one run
_PATTERN: Final = re.compile(r"[{/]")  # a path below the work directory, or a member of the payload
OUTPUT: Final = "output"  # the stream with the lines of the standard output
MAX_STREAM: Final = 4 * 1024 * 1024  # characters of one run
MAX_STREAM_LINE: Final = 64 * 1024  # of the last line
MAX_RESULT: Final = 200_000
MAX_EVENT: Final = 1000
MAX_ERROR: Final = 600
MAX_PAYLOAD_VARIABLE: Final = 64 * 1024  # a longer payload is only in the file
MIN_SECRET_LENGTH: Final = 8
EARLIEST: Final = timedelta(seconds=5)
LATEST: Final = timedelta(days=30)


@dataclass(frozen=True)
class AgentOptions:
    """Options of `interlock agent run`."""

    adapter: Literal["claude", "codex", "gemini", "plain"]
    command: Sequence[str]
    prompt: str | None = None
    schema: Path | None = None
    work_dir: Path = Path("interlock-agents")
    repository: Path | None = None
    keep: Literal["always", "failed", "never"] = "failed"
    environment: Mapping[str, str] = field(default_factory=dict)
    approve_tools: str | None = None
    approval_expires_in: float | None = None
    max_usd: float | None = None
    idle_timeout: float | None = None
    rate_limit_delay: float = 300.0
    limit: str | None = None


class WholePayload(Signature):
    """Arguments of a task that gets the payload as it is, whatever JSON it is."""

    def unpack(self, payload: str | None) -> dict[str, Any]:
        return {"payload": serialization.decode(payload)}

    def schema(self) -> dict[str, Any]:
        return {}


def declare(app: App, type: str, options: AgentOptions) -> Task[..., Any]:
    """Declare the task that runs the command for jobs of a type."""
    if options.approve_tools is not None and options.adapter not in APPROVING:
        raise ValueError(f"--approve-tools does not work with {options.adapter}: only with {', '.join(APPROVING)}")
    if options.max_usd is not None and options.adapter not in CAPPED:
        raise ValueError(f"--max-usd does not work with {options.adapter}: only with {', '.join(CAPPED)}")
    if options.idle_timeout is not None and not options.idle_timeout > 0:
        raise ValueError(f"--idle-timeout is {options.idle_timeout:g}: expected more than 0 seconds")
    if options.max_usd is not None and not options.max_usd > 0:
        raise ValueError(f"--max-usd is {options.max_usd:g}: expected more than 0")
    program, path = options.command[0], options.environment.get("PATH", os.environ.get("PATH"))
    if not _PATTERN.search(program) and shutil.which(program, path=path) is None:
        raise ValueError(f"command {program!r} is not found: install it, or write its path")
    if options.repository is not None:
        WorkDirectory.check(options.repository)
    validator = None if options.schema is None else _validator(options.schema)

    async def agent(ctx: Context, payload: Any = None) -> Any:
        return await AgentRun(ctx, payload, options, validator).run()

    task = app.task(name=type)(agent)
    task.signature = WholePayload(agent, Context)
    return task


class AgentRun:
    """One run of the command. The checkpoint holds the session and what the command has used."""

    def __init__(self, ctx: Context, payload: Any, options: AgentOptions, validator: Any) -> None:
        self._ctx, self._payload, self._options, self._validator = ctx, payload, options, validator
        self._saved: dict[str, Any] = ctx.checkpoint if isinstance(ctx.checkpoint, dict) else {}
        self._text = ctx._job.payload or "null"  # as it was sent: numbers keep all their digits
        self._place = WorkDirectory(options.work_dir, ctx.id, options.repository)
        self._secrets = _written_forms(options.environment.values())
        self._is_capped_by_budget = False  # the cost of this run is bounded by a budget of the job, not by the option
        self._events, self._room = 0, MAX_STREAM
        self._usage = UsageNotes(ctx, self._saved, is_cumulative=options.adapter in CUMULATIVE)

    async def run(self) -> Any:
        await asyncio.to_thread(end_marked, self._ctx.id)
        await asyncio.to_thread(self._place.prepare, self._text)
        keep = self._options.keep
        try:
            result = await self._result()
        except (Exception, asyncio.CancelledError) as error:
            for name, amount in self._usage.unreported.items():  # of a command that was ended with the run
                self._ctx._step_usage[name] += amount
            if keep == "never" and self._ends_job(error):
                await asyncio.shield(asyncio.to_thread(self._place.remove))
            raise
        if keep != "always":
            await asyncio.to_thread(self._place.remove)
        return result

    def _ends_job(self, error: BaseException) -> bool:
        if isinstance(error, asyncio.CancelledError):
            return self._ctx.cancelled
        return isinstance(error, Fail) or self._ctx.attempt >= self._ctx.job.max_attempts

    async def _result(self) -> Any:
        outcome = await self._attempt()
        if outcome.is_session_missing:  # another machine has it, or it was never begun
            self._ctx.event("session not found, starting a new one", level="warn", session=self._saved.get("session"))
            self._saved = {name: value for name, value in self._saved.items() if name in ("cost", "running")}
            outcome = await self._attempt()
        await self._attach_files()
        if outcome.deferred is not None:
            self._saved["pending"] = self._masked(_as_dict(outcome.deferred))
            self._saved["skipped"] = [self._masked(_as_dict(one)) for one in outcome.skipped]
            await self._ctx.save_checkpoint(self._saved)
            await self._decision()  # suspends the run
        if outcome.is_rate_limited:
            raise self._release(outcome)
        if outcome.is_budget_spent:
            raise BudgetExceeded(self._ctx.id) if self._is_capped_by_budget else self._budget_is_spent()
        if outcome.error is not None:
            raise (Fail if outcome.is_permanent else Retry)(self._masked(outcome.error)[:MAX_ERROR])
        return self._checked(outcome)

    async def _attempt(self) -> Outcome:
        options, session = self._options, self._saved.get("session")
        decisions = await self._decision() if self._saved.get("pending") else {}
        new_session = str(uuid.uuid4())
        first_prompt = prompt_of(self._payload, self._text, options.prompt)
        max_usd = await self._left()
        setup = Setup(
            [argument(one, self._payload, first_prompt) for one in options.command], self._place.path, session,
            new_session, options.schema.absolute() if options.schema else None, options.approve_tools, max_usd,
            decisions,
        )  # fmt: skip
        adapter = ADAPTERS[options.adapter](setup)
        command = adapter.command()
        self._usage.begin(self._saved)
        if adapter.session is not None and adapter.session != session:  # before it exists: a killed run resumes it
            self._saved["session"] = adapter.session
            await self._ctx.save_checkpoint(self._saved)
        # A deferred call continues by itself; a prompt would add a turn.
        prompt = "" if decisions else CONTINUE if session else first_prompt
        self._place.prompt_file.write_text(prompt, errors="replace")

        async def on_line(line: str) -> bool:
            self._write(line)
            before = adapter.usage
            for note in adapter.read(line):
                self._event(note)
            is_other = adapter.session is not None and adapter.session != self._saved.get("session")
            if is_other:
                self._saved["session"] = adapter.session
            if adapter.usage != before:
                self._usage.note(self._saved, adapter.usage)
            if is_other or adapter.usage != before:
                await self._ctx.save_checkpoint(self._saved)
            return adapter.should_end

        try:
            ended, errors = await run_command(
                command, directory=self._place.work, stdin=self._place.prompt_file,
                environment=self._environment(max_usd), idle_seconds=options.idle_timeout, on_line=on_line,
            )  # fmt: skip
        except Idle as error:
            adapter.outcome(Exit(signal=int(signal.SIGKILL)), "")  # counts what was used until then
            await self._report_usage(adapter)
            raise Retry(str(error)) from None
        outcome = adapter.outcome(ended, errors)
        await self._report_usage(adapter)
        if decisions and not outcome.is_session_missing:
            self._saved.pop("pending", None), self._saved.pop("skipped", None)
            await self._ctx.save_checkpoint(self._saved)
        return outcome

    async def _decision(self) -> dict[str, dict[str, Any]]:
        """Return the decision about the deferred tool call; request it if there is none, which ends the run."""
        call = self._saved["pending"]
        answer = await self._ctx.approve(
            f"Run {call['name']}?", name=f"tool {call['id']}"[:200], on_deny="resume",
            details={"tool": call["name"], "input": call["input"]}, expires_in=self._options.approval_expires_in,
        )  # fmt: skip
        reason = answer.comment or ("approved" if answer.approved else "An approver denied this call.")
        dropped = self._saved.get("skipped") or []
        note = "".join(
            f"Your call of {one['name']} with {json.dumps(one['input'])[:2000]} in the same turn did not run. "
            "Repeat it if it is still needed. "
            for one in dropped
        )
        return {call["id"]: {"approved": answer.approved, "reason": reason, "note": note}}

    def _release(self, outcome: Outcome) -> Release | RateLimited:
        """Return the release until the reset. It holds the limit that the provider's answer is about."""
        delay = timedelta(seconds=self._options.rate_limit_delay)
        if outcome.until is not None:  # as a delay: the clock of the database may differ
            delay = outcome.until - datetime.now(UTC)
        delay, reason = min(max(delay, EARLIEST), LATEST), self._masked(outcome.error or "")[:MAX_ERROR]
        named = [str(one["name"]) for one in self._ctx.job.limits or ()]
        limit = self._options.limit or (named[0] if len(named) == 1 else "")
        return RateLimited(limit, delay=delay, reason=reason) if limit in named else Release(delay=delay, reason=reason)

    async def _left(self) -> float | None:
        """Return what the run may cost: what is left of the option, and of the budgets of the job.

        The cost of earlier runs is in the checkpoint.
        """
        shared = await self._left_of_budgets()
        if self._options.max_usd is None:
            self._is_capped_by_budget = shared is not None
            return shared
        left = self._options.max_usd - float(self._saved.get("cost", 0))
        if left <= 0:
            raise self._budget_is_spent()
        self._is_capped_by_budget = shared is not None and shared < left
        return shared if self._is_capped_by_budget else left

    async def _left_of_budgets(self) -> float | None:
        """Return the least amount of USD that is available of a budget, which the job may spend alone."""
        job, client = self._ctx.job, self._ctx._client
        found = [await client.jobs.budget(job.id)] if job.budget_roots else []
        for name in job.budgets:
            with contextlib.suppress(Forbidden):  # the token of the worker may not read; the server still counts
                found.append(await client.budgets.get(name))
        own = sum(float((one.get("cost") or {}).get("usd", 0)) for one in job.limits or ())  # it has reserved this
        left = [one.available["usd"] + own for one in found if "usd" in one.amount]
        if not left:
            return None
        if min(left) <= 0:
            raise BudgetExceeded(job.id)
        return min(left)

    def _budget_is_spent(self) -> Fail:
        return Fail(f"the budget of {self._options.max_usd:g} USD is spent", kind="budget_exceeded")

    async def _report_usage(self, adapter: Adapter) -> None:
        if used := self._usage.end(self._saved, adapter.usage):

            async def usage() -> None:
                self._ctx.usage(**used)

            await self._ctx.save_checkpoint(self._saved)
            # In a step of this run: outside of steps it would have to be reported again by the run after an approval.
            # With the ID, because a redriven job has the steps of another one.
            try:
                await self._ctx.step(f"usage of run {self._ctx.job.fence} of {self._ctx.id}", usage)
            except BudgetExceeded:  # the step did not begin, and the usage is that of this run all the same
                self._ctx.usage(**used)
                raise

    def _checked(self, outcome: Outcome) -> Any:
        """Return the result: the last message, or JSON that is valid against the schema."""
        if self._validator is None:
            message = self._masked(outcome.message)[:MAX_RESULT]
            return message if outcome.structured is UNSET else self._masked(outcome.structured)
        value = outcome.structured
        if value is UNSET:
            try:
                value = json.loads(outcome.message)
            except ValueError:
                raise Retry("the last message is not JSON: expected JSON by the schema") from None
        try:
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            reason = self._masked(error.message)
            raise Retry(f"the result does not match the schema: {reason[:500]}") from None
        return self._masked(value)

    async def _attach_files(self) -> None:
        for name, path in await asyncio.to_thread(lambda: list(self._place.files())):
            try:
                await self._ctx.attach(name, await asyncio.to_thread(_content, path))
            except (OSError, TooLarge, Invalid, ArtifactsNotConfigured) as error:
                self._ctx.event("artifact not attached", level="warn", file=name, error=str(error))

    def _write(self, line: str) -> None:
        """Append a line of the output to the stream `output`, until it is too long for that."""
        if self._room <= 0:
            return
        text = self._masked(line) + "\n"
        self._room -= len(text)
        if self._room <= 0:
            text = f"{text[:MAX_STREAM_LINE]}[further output is not recorded]\n"
        try:
            self._ctx.stream(OUTPUT).write(text)
        except Error as error:  # the streams of the job are full: the command goes on
            self._room = 0
            self._ctx.event("further output is not recorded in the stream", level="warn", error=str(error))

    def _event(self, note: Note) -> None:
        self._events += 1
        if self._events == MAX_EVENTS:
            self._ctx.event("further output is not recorded as events", level="warn")
        if self._events >= MAX_EVENTS:
            return
        message = self._masked(note.message)[:MAX_EVENT] or "output"
        details = {"output": self._masked(dict(note.payload))} if note.payload else {}
        self._ctx.event(message, level=note.level, **details)  # type: ignore[arg-type]

    def _masked(self, value: Any) -> Any:
        """Return text, or JSON with text in it, without the secrets of the command."""
        match value:
            case str():
                for secret in self._secrets:
                    value = value.replace(secret, "***")
                return value
            case list():
                return [self._masked(one) for one in value]
            case dict():
                return {self._masked(name): self._masked(one) for name, one in value.items()}
        return value

    def _environment(self, max_usd: float | None) -> dict[str, str]:
        """Return the environment of the command: an allow-list, the given variables, and the job."""
        place, job = self._place, self._ctx.job
        is_short = len(self._text.encode()) <= MAX_PAYLOAD_VARIABLE
        return {
            **base_environment(), "TZ": "UTC", **self._options.environment,
            **({"INTERLOCK_JOB_PAYLOAD_JSON": self._text} if is_short else {}),
            **({"INTERLOCK_JOB_MAX_USD": f"{max_usd:.6f}"} if max_usd is not None else {}),
            "INTERLOCK_JOB_ID": job.id, "INTERLOCK_JOB_TYPE": job.type, "INTERLOCK_JOB_ATTEMPT": str(job.attempt),
            "INTERLOCK_JOB_PAYLOAD": str(place.payload_file), "INTERLOCK_JOB_PROMPT": str(place.prompt_file),
            "INTERLOCK_JOB_ARTIFACTS": str(place.artifacts), "INTERLOCK_JOB_USAGE": str(place.path / USAGE),
        }  # fmt: skip


def _written_forms(secrets: Iterable[str]) -> list[str]:
    """Return how secrets appear in a line of output: line by line, and also as in JSON; the longest first."""
    lines = {line for one in secrets for line in (one, *one.splitlines()) if len(line) >= MIN_SECRET_LENGTH}
    lines |= {json.dumps(one, ensure_ascii=is_ascii)[1:-1] for one in lines for is_ascii in (True, False)}
    return sorted(lines, key=len, reverse=True)


def _content(path: Path) -> bytes:
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()


def _as_dict(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "name": call.name, "input": call.input}


def _validator(schema: Path) -> Any:
    try:
        return jsonschema_rs.validator_for(json.loads(schema.read_text()), offline=True)
    except (OSError, ValueError, jsonschema_rs.ValidationError, Error) as error:
        raise ValueError(f"schema {schema} cannot be used: {error}") from None
