"""Effects in tasks: called once, verified or asked about when the outcome is unknown, and never repeated blindly."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import interlock
from interlock.domain.approval import ApprovalKind
from interlock.domain.lifecycle import Status
from tests.support.apps import StoreApp
from tests.support.stores import ManualClock
from tests.worker.test_question import pending, respond

PAUSE = 60.0
ONE_PAUSE = interlock.Backoff("fixed", base=PAUSE)


class Receipt(msgspec.Struct):
    order: int
    key: str | None


class Shop:
    """An external system: charges as it is told, and counts the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, str | None]] = []
        self.fails: list[Exception] = []
        self.booked: dict[str | None, Receipt] = {}

    async def charge(self, order: int, *, key: str | None = None) -> Receipt:
        self.calls.append((order, key))
        if self.fails:
            raise self.fails.pop(0)
        return Receipt(order, key)

    def was_charged(self, order: int, key: str) -> Receipt | None:
        return self.booked.get(key)


@pytest.fixture
def shop() -> Shop:
    return Shop()


async def test_an_effect_is_called_once_with_its_key_and_replayed(app: StoreApp, shop: Shop) -> None:
    @app.task
    async def sell(ctx: interlock.Context) -> Any:
        given = await ctx.effect("charge", shop.charge, 7, key="order-7")
        derived = await ctx.effect("charge", shop.charge, 8)
        plain = await ctx.effect("note", lambda text: text, "no key", key="k")
        await ctx.sleep(0)
        await ctx.receive("go")
        assert (type(given), type(derived)) == (Receipt, Receipt)
        return [given.key, derived.key, plain]

    handle = await sell.enqueue()
    await app.drain()
    await handle.send("go")
    await app.drain()
    keys = ["order-7", f"{handle.id}/charge/2"]
    assert await handle.result() == [*keys, "no key"]
    assert shop.calls == [(7, keys[0]), (8, keys[1])]
    effects = await app.jobs.effects(handle.id)
    assert [(one.name, one.occurrence, one.state, one.key, one.attempt) for one in effects] == [
        ("charge", 1, "done", keys[0], 1), ("charge", 2, "done", keys[1], 1), ("note", 1, "done", "k", 1),
    ]  # fmt: skip
    assert effects[0].result == {"order": 7, "key": keys[0]}


@pytest.mark.parametrize("happened", [True, False])
async def test_verify_decides_after_an_unknown_outcome(
    app: StoreApp, clock: ManualClock, shop: Shop, happened: bool
) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> int:
        return (await ctx.effect("charge", shop.charge, 7, key="k7", verify=shop.was_charged)).order

    shop.fails = [TimeoutError("no response")]
    if happened:
        shop.booked["k7"] = Receipt(70, "k7")
    handle = await sell.enqueue()
    await app.drain()
    assert (await app.job(handle.id)).status is Status.RETRY
    assert [one.state for one in await app.jobs.effects(handle.id)] == ["started"]
    clock.advance(PAUSE)
    await app.drain()
    assert await handle.result() == (70 if happened else 7)
    assert len(shop.calls) == (1 if happened else 2)


@pytest.mark.parametrize(
    ("found", "result", "calls"),
    [
        (None, "sent", 2),
        (False, "sent", 2),
        (True, None, 1),
        ("by mail", "by mail", 1),
        (interlock.Done("x"), "x", 1),
        (interlock.Done(False), False, 1),
        (interlock.Done(), None, 1),
    ],
)
async def test_what_verify_returns(app: StoreApp, clock: ManualClock, found: Any, result: Any, calls: int) -> None:
    called = 0

    def send():  # type: ignore[no-untyped-def]
        nonlocal called
        called += 1
        if called == 1:
            raise OSError("the connection broke")
        return "sent"

    @app.task(backoff=ONE_PAUSE)
    def mail(ctx: interlock.Context) -> Any:
        return ctx.effect_sync("send", send, verify=lambda: found)

    handle = await mail.enqueue()
    await app.drain()
    clock.advance(PAUSE)
    await app.drain()
    assert (await handle.result(), called) == (result, calls)


async def test_a_failing_verify_is_retried_and_the_effect_is_not(app: StoreApp, clock: ManualClock, shop: Shop) -> None:
    checks = 0

    def check(order: int) -> Receipt:
        nonlocal checks
        checks += 1
        if checks == 1:
            raise OSError("unreachable")
        return Receipt(order, None)

    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> int:
        return (await ctx.effect("charge", shop.charge, 7, verify=check)).order

    shop.fails = [TimeoutError()]
    handle = await sell.enqueue()
    for _ in range(3):
        await app.drain()
        clock.advance(PAUSE)
    assert (await handle.result(), len(shop.calls), checks) == (7, 1, 2)


@pytest.mark.parametrize("outcome", ["done", "run again"])
async def test_without_verify_a_person_decides(app: StoreApp, clock: ManualClock, shop: Shop, outcome: str) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> Any:
        receipt = await ctx.effect("charge", shop.charge, 7, key="k7")
        await ctx.sleep(1)
        return receipt.order

    shop.fails = [TimeoutError()]
    handle = await sell.enqueue()
    await app.drain()
    clock.advance(PAUSE)
    await app.drain()
    job, question = await app.job(handle.id), await pending(app, handle.id)
    assert (job.status, question.kind) == (Status.WAITING_FOR_APPROVAL, ApprovalKind.QUESTION)
    assert "'charge'" in question.prompt
    assert '"k7"' in (question.details or "")
    if outcome == "done":
        with pytest.raises(interlock.errors.Invalid):
            await respond(app, handle.id, {"outcome": "done", "result": {"order": "seven"}})
        await respond(app, handle.id, {"outcome": "done"})
        await app.drain()
        assert "must be Receipt" in (await pending(app, handle.id)).prompt
        await respond(app, handle.id, {"outcome": "done", "result": {"order": 70, "key": None}})
    else:
        await respond(app, handle.id, {"outcome": "run again"})
    await app.drain()
    clock.advance(1)
    await app.drain()
    assert await handle.result() == (70 if outcome == "done" else 7)
    assert len(shop.calls) == (1 if outcome == "done" else 2)


async def test_every_unknown_outcome_is_asked_about_anew(app: StoreApp, clock: ManualClock, shop: Shop) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> int:
        return (await ctx.effect("charge", shop.charge, 7)).order

    shop.fails = [TimeoutError(), TimeoutError()]
    handle = await sell.enqueue()
    asked = set()
    for expected in (1, 2):
        await app.drain()
        clock.advance(PAUSE)
        await app.drain()
        asked.add((await pending(app, handle.id)).id)
        assert len(shop.calls) == expected
        await respond(app, handle.id, {"outcome": "run again"})
    await app.drain()
    assert (await handle.result(), len(shop.calls), len(asked)) == (7, 3, 2)


async def test_a_person_can_fail_the_job_and_a_redrive_asks_again(
    app: StoreApp, clock: ManualClock, shop: Shop
) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> int:
        return (await ctx.effect("charge", shop.charge, 7)).order

    shop.fails = [TimeoutError()]
    handle = await sell.enqueue()
    await app.drain()
    clock.advance(PAUSE)
    await app.drain()
    await respond(app, handle.id, {"outcome": "fail"})
    await app.drain()
    job = await app.job(handle.id)
    assert job.status is Status.FAILED
    assert '"effect_unknown"' in (job.error or "")
    for origin in ("start", "interlock.effect/charge"):
        again = await app.jobs.redrive(handle.id, start_from=origin, idempotency_key=origin)
        await app.drain()
        assert len(shop.calls) == 1
        await respond(app, again.id, {"outcome": "done", "result": {"order": 70, "key": None}})
        await app.drain()
        assert (await again.refresh()).result == 70
    assert len(shop.calls) == 1


async def test_a_declined_question_fails_the_attempt(app: StoreApp, clock: ManualClock, shop: Shop) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> str:
        try:
            await ctx.effect("charge", shop.charge, 7)
        except interlock.Declined as error:
            return str(error)
        return "charged"

    shop.fails = [TimeoutError()]
    handle = await sell.enqueue()
    await app.drain()
    clock.advance(PAUSE)
    await app.drain()
    await respond(app, handle.id, comment="ask Bob")
    await app.drain()
    assert (await handle.result(), len(shop.calls)) == ("declined: ask Bob", 1)


async def test_a_function_that_raises_retry_has_done_nothing(app: StoreApp, clock: ManualClock, shop: Shop) -> None:
    @app.task(backoff=ONE_PAUSE)
    async def sell(ctx: interlock.Context) -> int:
        return (await ctx.effect("charge", shop.charge, 7)).order

    shop.fails = [interlock.Retry("busy", delay=5)]
    handle = await sell.enqueue()
    await app.drain()
    assert [one.state for one in await app.jobs.effects(handle.id)] == ["not_done"]
    clock.advance(5)
    await app.drain()
    assert (await handle.result(), len(shop.calls)) == (7, 2)


async def test_a_redrive_from_the_start_does_not_repeat_effects(app: StoreApp, shop: Shop) -> None:
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    @app.task
    async def sell(ctx: interlock.Context) -> int:
        await ctx.step("count", count)
        receipt = await ctx.effect("charge", shop.charge, 7)
        if len(shop.calls) == 1 and steps == 1:
            raise interlock.Fail("after the charge")
        return receipt.order

    handle = await sell.enqueue()
    await app.drain()
    again = await app.jobs.redrive(handle.id)
    await app.drain()
    assert ((await again.refresh()).result, len(shop.calls), steps) == (7, 1, 2)


@pytest.mark.parametrize("before", ["started", "done"])
async def test_an_effect_does_not_become_a_step_nor_a_step_an_effect(
    app: StoreApp, clock: ManualClock, shop: Shop, before: str
) -> None:
    deployed = False

    @app.task(backoff=ONE_PAUSE, max_attempts=10)
    async def sell(ctx: interlock.Context) -> int:
        if not deployed:
            order = (await ctx.effect("charge", shop.charge, 7, verify=shop.was_charged)).order
            await ctx.step("count", lambda: 1)
        else:
            order = (await ctx.step("charge", shop.charge, 7)).order
        raise RuntimeError(order)

    if before == "started":
        shop.fails = [TimeoutError()]
    handle = await sell.enqueue()
    await app.drain()
    deployed = True
    clock.advance(PAUSE)
    await app.drain()
    assert len(shop.calls) == 1
    job = await app.job(handle.id)
    assert (job.status, '"step_mismatch"' in (job.error or "")) == (Status.RETRY, True)

    @app.task(backoff=ONE_PAUSE)
    async def count(ctx: interlock.Context) -> None:
        await (ctx.effect if deployed else ctx.step)("count", lambda: 1)
        raise RuntimeError

    deployed = False
    other = await count.enqueue()
    await app.drain()
    deployed = True
    clock.advance(PAUSE)
    await app.drain()
    assert '"step_mismatch"' in ((await app.job(other.id)).error or "")


async def test_wrong_calls_are_rejected(app: StoreApp, shop: Shop) -> None:
    @app.task
    async def sell(ctx: interlock.Context) -> None:
        with pytest.raises(TypeError, match="effect takes a name"):
            await ctx.effect("charge", shop.charge(7))  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="the name of an effect"):
            await ctx.effect("interlock.x", shop.charge, 7)
        with pytest.raises(interlock.errors.Invalid):
            await ctx.effect("charge", shop.charge, 7, key="")

    handle = await sell.enqueue()
    await app.drain()
    await handle.result()
    assert shop.calls == []
