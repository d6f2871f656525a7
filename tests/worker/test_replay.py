"""A deploy under jobs in progress: what is recorded is found by name and occurrence, and by nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import interlock
from interlock.domain.approval import ApprovalFilter, ApprovalKind, ApprovalStatus, Decision
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.domain.principal import local
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import SECOND, ManualClock

ADA = local(TENANT)
PAUSE = 60.0
WAITS = ("children", "approval", "retry", "release")
EVERY_WAIT = ("children", "approval", "sleep", "question", "message", "topic", "effect", "retry", "release")
CHANGES = (
    "rename the function", "reword the prompts", "change details", "change the schemas", "add a step before",
    "add a step after", "remove a step", "reorder steps", "change arguments of children", "add a child",
    "remove the children", "rename the waits", "sleep longer",
)  # fmt: skip
Code = Callable[[interlock.Context], Awaitable[Any]]


class Flow:
    """Tasks whose code a test can replace, as a deploy does."""

    def __init__(self, app: StoreApp, clock: ManualClock, **options: Any) -> None:
        self.app, self.clock = app, clock
        self.ran: Counter[str] = Counter()
        self.code: Code

        @app.task(**options)
        async def flow(ctx: interlock.Context) -> Any:
            return await self.code(ctx)

        @app.task
        async def child(n: int) -> int:
            self.ran["child"] += 1
            return n

        @app.task
        async def other(n: int) -> int:
            return n

        self.task, self.child, self.other = flow, child, other

    def once(self, name: str) -> Callable[[], str]:
        def work() -> str:
            self.ran[name] += 1
            return name

        work.__qualname__ = f"work_{name}_{self.ran.total()}"
        return work

    async def start(self, code: Code) -> str:
        self.code = code
        handle = await self.task.enqueue()
        await self.app.drain()
        return handle.id

    async def go_on(self, code: Code | None = None) -> None:
        """Deploy, if there is other code, and run the due jobs after a while."""
        self.code = code or self.code
        self.clock.advance(PAUSE)
        await self.app.drain()

    async def decide(self, job_id: str, comment: str = "yes") -> None:
        (approval,) = await self.app.engine.approvals.list(
            TENANT, ApprovalFilter(status=ApprovalStatus.OPEN, job_id=job_id)
        )
        await self.app.engine.approvals.decide(ADA, approval.id, Decision.APPROVE, comment=comment)

    async def job(self, job_id: str) -> Job:
        return await self.app.job(job_id)

    async def result(self, job_id: str) -> Any:
        return json.loads((await self.app.job(job_id)).result or "null")

    async def mismatch(self, job_id: str) -> str:
        """The error of a job that fails retryably; it waits at least 30 s."""
        job = await self.app.job(job_id)
        error = json.loads(job.error or "{}")
        assert (job.status, error.get("kind")) == (Status.RETRY, "step_mismatch"), error
        assert job.run_at >= self.clock.now + 30 * SECOND
        return str(error["message"])


@pytest.fixture
def flow(app: StoreApp, clock: ManualClock) -> Flow:
    return Flow(app, clock)


class Branch(msgspec.Struct):
    name: str


class LabeledBranch(Branch):
    label: str = "none"


@pytest.mark.parametrize("wait", EVERY_WAIT)
async def test_changes_of_code_break_no_job_in_progress(app: StoreApp, clock: ManualClock, wait: str) -> None:
    deployed = False
    ran: Counter[tuple[str, str]] = Counter()

    @app.task(delay=PAUSE)
    async def child(n: int) -> int:
        return n

    @app.task
    async def flow(ctx: interlock.Context, change: str) -> list[object]:
        is_now = change if deployed else ""

        def load() -> None:
            ran[change, "load"] += 1

        def renamed() -> None:
            ran[change, "load"] += 1

        def shape() -> dict[str, int]:
            ran[change, "shape"] += 1
            return {"n": 1}

        steps: list[tuple[str, Callable[[], object]]] = [("load", load), ("shape", shape)]
        if is_now == "rename the function":
            steps[0] = ("load", renamed)
        if is_now == "remove a step":
            del steps[1]
        if is_now == "reorder steps":
            steps.reverse()
        if is_now == "add a step before":
            await ctx.step("added", str)
        for name, function in steps:
            await ctx.step(name, function)
        n = 5 if is_now == "change arguments of children" else 1
        new_name = " again" if is_now == "rename the waits" else ""
        new_words = ", please?" if is_now == "reword the prompts" else "?"
        form: type[Branch] = LabeledBranch if is_now == "change the schemas" else Branch
        children = await ctx.enqueue_many(child, [{"n": n}, {"n": n + 1}], name="pages")
        if is_now == "remove the children":
            children = []
        if is_now == "add a child":
            children += await ctx.enqueue_many(child, [{"n": 9}], name="more pages")
        found = (await ctx.results(children))[:2]
        decision = await ctx.approve(
            f"Continue{new_words}",
            name=f"continue{new_name}",
            details={"at": time.time()} if is_now == "change details" else {"at": 0},
            schema={"type": "string", "title": "Other" if is_now == "change the schemas" else "Title"},
        )
        await ctx.sleep(3 * PAUSE if is_now == "sleep longer" else PAUSE, name=f"pause{new_name}")
        branch = await ctx.ask(f"Which branch{new_words}", schema=form, name=f"branch{new_name}")
        note = await ctx.receive("note", schema=str, name=f"note{new_name}")
        news = await ctx.receive(topic="news", schema=str, name=f"news{new_name}")

        def charge(amount: int) -> int:
            ran[change, "charge"] += 1
            if ran[change, "charge"] == 1:
                raise OSError("no response")
            return amount

        def charge_renamed(amount: int) -> int:
            return charge(amount)

        paid = await ctx.effect("charge", charge_renamed if is_now == "rename the function" else charge, 7)
        if is_now == "add a step after":
            await ctx.step("added", str)
        if wait == "retry" and not deployed:
            raise interlock.Retry(delay=PAUSE)
        if wait == "release" and not deployed:
            raise interlock.Release(delay=PAUSE)
        return [*found, decision.comment, branch.name, note, news, paid]

    async def respond() -> None:
        for one in await app.engine.approvals.list(TENANT, ApprovalFilter(status=ApprovalStatus.OPEN)):
            data = '{"name": "main"}' if one.kind is ApprovalKind.QUESTION else None
            if one.name is not None and one.name.startswith("interlock.effect/"):
                data = '{"outcome": "run again"}'
            await app.engine.approvals.decide(ADA, one.id, Decision.APPROVE, comment="yes", data=data)

    async def pass_time() -> None:
        clock.advance(PAUSE + 1)

    async def send() -> None:
        for handle in handles.values():
            await handle.send("note", "hello", id="first")

    async def publish() -> None:
        await app.publish("news", "fresh", id="first", retain=7 * 86_400)

    async def find_out() -> None:
        clock.advance(PAUSE + 1)
        await app.drain()
        await respond()

    async def ended(handle: interlock.JobHandle[Any]) -> bool:
        return (await app.job(handle.id)).status is Status.SUCCEEDED

    handles = {change: await flow.enqueue(change=change) for change in CHANGES}
    ends = {"children": pass_time, "approval": respond, "sleep": pass_time, "question": respond, "message": send}
    ends |= {"topic": publish, "effect": find_out}
    for stage, end in ends.items():
        await app.drain()
        if wait == stage:
            found = [await app.job(handle.id) for handle in handles.values()]
            asked = Status.WAITING_FOR_APPROVAL if stage in ("approval", "question") else Status.QUEUED
            asked = Status.RETRY if stage == "effect" else asked
            assert {job.status for job in found} == {asked}
            assert {job.worker for job in found} == {None}
            deployed = True
        await end()
    await app.drain()
    statuses = {(await app.job(handle.id)).status for handle in handles.values()}
    assert deployed or statuses == {Status.RETRY if wait == "retry" else Status.QUEUED}
    deployed = True
    for n in range(8):  # new waits of the new code; a renamed receive is another one, and waits for the next message
        clock.advance(PAUSE + 1)
        await app.drain()
        await respond()
        if not await ended(renamed := handles["rename the waits"]):
            await renamed.send("note", "hello", id=f"again {n}")
            await app.publish("news", "fresh", id=f"again {n}")
    await app.drain()
    for change, handle in handles.items():
        job = await app.job(handle.id)
        assert (job.status, job.error) == (Status.SUCCEEDED, None), change
        pages = [] if change == "remove the children" else [1, 2]
        assert await handle.result(timeout=RETRY_SECONDS) == [*pages, "yes", "main", "hello", "fresh", 7], change
        assert ran[change, "charge"] == 2, change
        assert (ran[change, "load"], ran[change, "shape"]) == (1, 1), change
        children = await (await app._client()).jobs.children(handle.id)
        assert len(children) == (3 if change == "add a child" else 2), change


def text() -> str:
    return "seven"


def number() -> int:
    return 7


@pytest.mark.parametrize(
    "case", ["step type", "answer type", "child type", "sleep to step", "question to approval", "message to sleep"]
)
async def test_a_change_that_breaks_a_job_waits_until_the_code_is_fixed(flow: Flow, case: str) -> None:
    other = interlock.App("sqlite:///unused.db")

    @other.task(name="child")
    async def child(n: int) -> str:
        return str(n)

    calls: dict[str, tuple[Code, Code, str]] = {
        "step type": (
            lambda ctx: ctx.step("x", text),
            lambda ctx: ctx.step("x", number),
            "a result of another type, and the code now asks for int (Expected `int`, got `str`)",
        ),
        "answer type": (
            lambda ctx: ctx.ask("Which?", name="x"),
            lambda ctx: ctx.ask("Which?", name="x", schema=int),
            "an answer of another type, and the code now asks for int (Expected `int`, got `str`)",
        ),
        "child type": (
            lambda ctx: _child_result(ctx, flow.child),
            lambda ctx: _child_result(ctx, child),
            "a child with a result of another type, and the code now asks for str",
        ),
        "sleep to step": (
            lambda ctx: ctx.sleep(PAUSE, name="x"),
            lambda ctx: ctx.step("x", text),
            "a sleep, and the code now asks for a step",
        ),
        "question to approval": (
            lambda ctx: ctx.ask("Which?", name="x"),
            lambda ctx: ctx.approve("Which?", name="x"),
            "a question, and the code now asks for an approval",
        ),
        "message to sleep": (
            lambda ctx: ctx.receive("note", name="x"),
            lambda ctx: ctx.sleep(PAUSE, name="x"),
            "a message, and the code now asks for a sleep",
        ),
    }
    before, after, words = calls[case]

    async def old(ctx: interlock.Context) -> Any:
        found = await before(ctx)
        if ctx.attempt == 1:
            raise interlock.Retry(delay=PAUSE)
        return found

    id = await flow.start(old)
    for one in await flow.app.engine.approvals.list(TENANT, ApprovalFilter(status=ApprovalStatus.OPEN)):
        await flow.app.engine.approvals.decide(ADA, one.id, Decision.APPROVE, data='{"answer": "seven"}')
    await (await flow.app._client()).jobs.send(id, "note", '"seven"')
    if (await flow.job(id)).status is not Status.RETRY:
        await flow.go_on()
    assert (await flow.job(id)).status is Status.RETRY
    await flow.go_on(after)
    message = await flow.mismatch(id)
    assert f"'x', occurrence 1, was recorded as {words}" in message
    assert "keep the old code for jobs in progress with ctx.patched()" in message
    await flow.go_on(old)
    assert await flow.result(id) == {"child type": 1, "sleep to step": None}.get(case, "seven")


async def _child_result(ctx: interlock.Context, task: Any) -> Any:
    return await (await ctx.enqueue(task, 1, name="x")).result()


async def test_a_message_of_another_type_fails_with_advice(flow: Flow) -> None:
    async def code(ctx: interlock.Context) -> str:
        try:
            await ctx.receive("note", schema=int)
        except ValueError as error:
            return str(error)
        return ""

    id = await flow.start(code)
    await (await flow.app._client()).jobs.send(id, "note", '"seven"')
    await flow.go_on()
    assert "message 'note', seq 1, is not int: Expected `int`, got `str`; change the schema" in await flow.result(id)


async def test_a_step_where_an_approval_was_recorded_waits_until_the_code_is_fixed(flow: Flow) -> None:
    async def asks(ctx: interlock.Context) -> str | None:
        return (await ctx.approve("Publish?", name="publish")).comment

    async def works(ctx: interlock.Context) -> str:
        return await ctx.step("publish", flow.once("publish"))

    id = await flow.start(asks)
    await flow.decide(id, "fine")
    await flow.go_on(works)
    message = await flow.mismatch(id)
    assert "'publish', occurrence 1, was recorded as an approval, and the code now asks for a step" in message
    assert "give it another name" in message
    assert flow.ran["publish"] == 0
    await flow.go_on(works)
    assert (await flow.job(id)).attempt == 3
    flow.clock.advance(PAUSE)
    await flow.go_on(asks)
    assert await flow.result(id) == "fine"


async def test_an_approval_where_a_step_was_recorded_waits_until_the_code_is_fixed(flow: Flow) -> None:
    async def works(ctx: interlock.Context) -> str:
        found = await ctx.step("publish", flow.once("publish"))
        if ctx.attempt == 1:
            raise interlock.Retry(delay=PAUSE)
        return found

    async def asks(ctx: interlock.Context) -> None:
        await ctx.approve("Publish?", name="publish")

    id = await flow.start(works)
    await flow.go_on(asks)
    assert "was recorded as a step, and the code now asks for an approval" in await flow.mismatch(id)
    await flow.go_on(works)
    assert (await flow.result(id), flow.ran["publish"]) == ("publish", 1)


async def test_a_child_of_another_type_waits_until_the_code_is_fixed(flow: Flow) -> None:
    async def first(ctx: interlock.Context) -> int:
        child = await ctx.enqueue(flow.child, 1, name="page")
        if ctx.attempt == 1:
            raise interlock.Retry(delay=PAUSE)
        return await child.result()

    async def second(ctx: interlock.Context) -> int:
        return await (await ctx.enqueue(flow.other, 1, name="page")).result()

    id = await flow.start(first)
    await flow.go_on(second)
    message = await flow.mismatch(id)
    assert "'page', occurrence 1, was recorded as a child of type child" in message
    assert "asks for a child of type other" in message
    await flow.go_on(first)
    assert (await flow.result(id), flow.ran["child"]) == (1, 1)


async def test_children_that_were_recorded_are_kept_beside_new_ones(flow: Flow) -> None:
    async def before(ctx: interlock.Context) -> None:
        await ctx.enqueue_many(flow.child, [{"n": 1}, {"n": 2}])
        raise interlock.Release(delay=PAUSE)

    async def after(ctx: interlock.Context) -> list[int]:
        named = [await ctx.enqueue(flow.child, n, name="page") for n in (7, 8)]
        numbered = await ctx.enqueue_many(flow.child, [{"n": 3}, {"n": 4}, {"n": 5}])
        return await ctx.results([*named, *numbered])

    id = await flow.start(before)
    await flow.go_on(after)
    assert await flow.result(id) == [7, 8, 1, 2, 5]


async def test_a_task_with_a_parameter_called_name_gets_that_argument(app: StoreApp) -> None:
    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    @app.task
    async def parent(ctx: interlock.Context) -> list[str]:
        one = await ctx.enqueue(greet, name="ada")
        return await ctx.results([one, *await ctx.enqueue_many(greet, [{"name": "bob"}], name="second")])

    handle = await parent.enqueue()
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == ["hello ada", "hello bob"]


async def test_each_approval_gets_the_decision_of_its_own_name_and_occurrence(flow: Flow) -> None:
    """A new approval is put in front of one that is decided already: neither takes the decision of the other."""

    async def before(ctx: interlock.Context) -> list[str | None]:
        return [(await ctx.approve("Publish?", name="publish")).comment for _ in range(2)]

    async def after(ctx: interlock.Context) -> list[str | None]:
        legal = await ctx.approve("Is it legal?", name="legal")
        return [legal.comment, *await before(ctx)]

    id = await flow.start(before)
    await flow.decide(id, "first")
    await flow.go_on(after)
    assert (await flow.job(id)).status is Status.WAITING_FOR_APPROVAL
    await flow.decide(id, "legal")
    await flow.go_on()
    await flow.decide(id, "second")
    await flow.go_on()
    assert await flow.result(id) == ["legal", "first", "second"]


async def test_decisions_come_with_a_job_that_is_redriven_from_a_later_step(flow: Flow) -> None:
    async def code(ctx: interlock.Context) -> str | None:
        comment = (await ctx.approve("Publish?")).comment
        await ctx.step("publish", flow.once("publish"))
        return comment

    id = await flow.start(code)
    await flow.decide(id, "fine")
    await flow.go_on()
    new = await flow.app.engine.operations.redrive(ADA, id, start_from="publish")
    await flow.go_on()
    assert (await flow.result(new.id), flow.ran["publish"]) == ("fine", 1)


@pytest.mark.parametrize("wait", WAITS)
async def test_a_patch_is_false_for_a_job_that_began_before_it(flow: Flow, wait: str) -> None:
    async def waits(ctx: interlock.Context) -> None:
        if wait == "approval":
            await ctx.approve("Go on?")
        elif wait == "children":
            await (await ctx.enqueue(flow.child.options(delay=PAUSE), 1)).result()
        elif wait == "retry":
            if ctx.attempt == 1:
                raise interlock.Retry(delay=PAUSE)
        elif len(await (await flow.app._client()).jobs.history(ctx.id)) == 2:
            raise interlock.Release(delay=PAUSE)

    async def old(ctx: interlock.Context) -> str:
        await waits(ctx)
        return "old"

    async def new(ctx: interlock.Context) -> list[object]:
        seen = [ctx.patched("v2")]
        await waits(ctx)
        await ctx.step("new" if ctx.patched("v2") else "old", flow.once("new" if seen[0] else "old"))
        if ctx.attempt < 3:
            raise interlock.Retry(delay=PAUSE)
        return [*seen, ctx.patched("v2"), ctx.patched("v3")]

    async def finish(id: str) -> object:
        for _ in range(5):
            if (await flow.job(id)).status is Status.WAITING_FOR_APPROVAL:
                await flow.decide(id)
            await flow.go_on()
        return await flow.result(id)

    before = await flow.start(old)
    after = await flow.start(new)
    assert await finish(before) == [False, False, False]
    assert await finish(after) == [True, True, False]  # v3 came only when it had run already
    assert flow.ran["old"] == flow.ran["new"] == 1


async def test_a_patch_is_recorded_before_the_work_that_belongs_to_it(flow: Flow) -> None:
    """A run that dies in its first step has taken the new way, and the next one takes it too."""

    async def code(ctx: interlock.Context) -> bool:
        def work() -> None:
            if ctx.attempt == 1:
                raise interlock.Retry(delay=PAUSE)

        is_new = ctx.patched("v2")
        await ctx.step("work", work)
        return is_new

    id = await flow.start(code)
    steps = await flow.app.engine.progress.steps(TENANT, id)
    assert [(step.name, step.result) for step in steps] == [("interlock.patched/v2", "true")]
    await flow.go_on()
    assert await flow.result(id) is True


@pytest.mark.parametrize("name", ["", " ", "interlock.approve", "a\nb", 7])
async def test_names_that_cannot_be_recorded_fail_where_they_are_written(flow: Flow, name: Any) -> None:
    async def code(ctx: interlock.Context) -> list[str]:
        failed: list[str] = []
        for call in (
            lambda: ctx.step(name, str),
            lambda: ctx.approve("Go on?", name=name),
            lambda: ctx.enqueue(flow.child, 1, name=name),
            lambda: ctx.enqueue_many(flow.child, [{"n": 1}], name=name),
        ):
            try:
                await call()
            except (ValueError, TypeError) as error:
                failed.append(type(error).__name__)
        try:
            ctx.patched(name)
        except (ValueError, TypeError) as error:
            failed.append(type(error).__name__)
        return failed

    id = await flow.start(code)
    assert await flow.result(id) == (["TypeError"] if name == 7 else ["ValueError"]) * 5
