"""What code declares is registered at the start of a worker, and never overwritten silently."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import interlock
from interlock.domain.timestamps import micros
from tests.support.apps import StoreApp
from tests.support.eventually import eventually
from tests.support.stores import ManualClock

WEEKDAYS = interlock.Cron("0 7 * * 1-5", timezone="Europe/Berlin", catch_up="last", jitter=5)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]


async def test_a_worker_registers_agents_and_schedules_once(app: StoreApp, caplog: pytest.LogCaptureFixture) -> None:
    defaults = interlock.Defaults(max_attempts=5, backoff=interlock.Backoff("fixed", base=3))
    reader = app.agent("worker", "reader", max_concurrency=2, defaults=defaults)

    @app.task(agent=reader, schedule=WEEKDAYS, priority=3, timeout=60)
    async def read(source: str = "tides") -> None: ...

    for _ in range(2):
        await app.drain()
    agent, schedule = await app.agents.get("worker", "reader"), await app.schedules.get("read")
    assert (agent.max_concurrency, agent.strict, agent.defaults, agent.implicit) == (2, False, defaults, False)
    assert (schedule.cron, schedule.timezone, schedule.catch_up, schedule.version) == (
        "0 7 * * 1-5", "Europe/Berlin", "last", 1,
    )  # fmt: skip
    assert (schedule.job["type"], schedule.job["priority"]) == ("read", 3)
    assert await app.register() == []
    assert warnings(caplog) == []


async def test_registered_values_that_differ_are_reported_and_kept(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    await app.agents.set("worker", "reader", max_concurrency=9)
    await app.schedules.set("read", "read", every=60)
    app.agent("worker", "reader", max_concurrency=2)

    @app.task(schedule=WEEKDAYS)
    async def read() -> None: ...

    await app.drain()
    assert warnings(caplog) == ["registry differs from code"] * 2
    agent, schedule = await app.register()
    assert (agent.kind, agent.name, dict(agent.declared), dict(agent.registered)) == (
        "agent", "worker/reader", {"max_concurrency": 2}, {"max_concurrency": 9},
    )  # fmt: skip
    assert (schedule.kind, schedule.name, schedule.registered["cron"]) == ("schedule", "read", None)
    assert (await app.agents.get("worker", "reader")).max_concurrency == 9
    assert await app.register(overwrite=True) == []
    assert (await app.agents.get("worker", "reader")).max_concurrency == 2
    assert (await app.schedules.get("read")).cron == "0 7 * * 1-5"


async def test_a_worker_registers_limits_and_budgets_once_and_tasks_name_them(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    model = app.limit("model", concurrency=20, rate={"usd": 5, "tokens": 40_000}, per=timedelta(hours=1))
    fair = app.limit("customers", concurrency=2, keyed=True, fair=True, weights={"acme": 3})
    nightly = app.budget("nightly", amount={"usd": 20}, per="day", timezone="Europe/Berlin", on_exceed="ask")

    @app.task(limits=[{"name": model, "cost": {"usd": 0.5}}, {"name": fair, "key": "{customer}"}], budgets=[nightly])
    async def summarize(ctx: interlock.Context, customer: str) -> None:
        ctx.usage(usd=0.25, tokens=900)

    @app.task(limits=[model])
    async def ping() -> None: ...

    for _ in range(2):
        await app.drain()
    limit, keyed, budget = await app.limits.get(model), await app.limits.get(fair), await app.budgets.get(nightly)
    assert (limit.concurrency, limit.rate, limit.per, limit.burst) == (
        20, {"usd": 5, "tokens": 40_000}, timedelta(hours=1), {"usd": 5, "tokens": 40_000},
    )  # fmt: skip
    assert (keyed.concurrency, keyed.rate, keyed.keyed, keyed.fair, keyed.weights) == (2, {}, True, True, {"acme": 3})
    assert (budget.amount, budget.per, budget.timezone, budget.on_exceed) == (
        {"usd": 20}, "day", "Europe/Berlin", "ask",
    )  # fmt: skip
    assert await app.register() == []
    assert warnings(caplog) == []
    actions = [row.action for row in await app.audit.log()]
    assert len([one for one in actions if one.startswith(("limit", "budget"))]) == 3, actions

    await summarize.enqueue("acme")
    await ping.enqueue()
    await app.drain()
    assert (await app.budgets.get(nightly)).spent == {"usd": 0.25}
    assert [job.status for job in await app.jobs.list()] == [interlock.Status.SUCCEEDED] * 2


async def test_the_defaults_of_a_declared_agent_name_limits_and_budgets(app: StoreApp) -> None:
    model = {"name": "model", "cost": {"usd": 0.5}, "key": None}
    defaults = interlock.Defaults(limits=[model, "plain"], budgets=["nightly"])
    reader = app.agent("worker", "reader", defaults=defaults)
    app.budget("nightly", {"usd": 20})
    app.limit("model", rate={"usd": 5})
    app.limit("plain", concurrency=1)

    @app.task(agent=reader)
    async def read() -> None: ...

    assert await app.register() == []
    assert await app.register() == []
    objects = [row.object for row in await app.audit.log()]
    assert objects.index("worker/reader") > max(map(objects.index, ("model", "plain", "budget:nightly")))
    found = (await app.agents.get("worker", "reader")).defaults
    assert (found.limits, found.budgets) == (({"name": "model", "cost": {"usd": 0.5}}, {"name": "plain"}), ("nightly",))
    job = await (await read.enqueue()).refresh()
    assert (job.budgets, [one["name"] for one in job.limits or ()]) == (("nightly",), ["model", "plain"])
    await app.agents.set("worker", "reader", defaults=interlock.Defaults(limits=[], budgets=["nightly"]))
    (differing,) = await app.register()
    assert differing.registered["defaults"] == {"limits": [], "budgets": ["nightly"]}


async def test_limits_and_budgets_that_differ_are_reported_and_kept(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def read() -> None: ...

    await app.limits.set("model", rate={"usd": 5}, per=3600)
    await app.budgets.set("nightly", {"usd": 20}, per="day")
    app.limit("model", concurrency=3, rate={"usd": 5}, per=60)
    app.budget("nightly", {"usd": 20}, per="month", on_exceed="fail")
    await app.drain()
    assert warnings(caplog) == ["registry differs from code"] * 2
    limit, budget = await app.register()
    assert (limit.kind, limit.name, dict(limit.declared), dict(limit.registered)) == (
        "limit", "model", {"concurrency": 3, "per": 60}, {"concurrency": None, "per": 3600},
    )  # fmt: skip
    assert (budget.kind, budget.name, dict(budget.declared), dict(budget.registered)) == (
        "budget", "nightly", {"per": "month", "on_exceed": "fail"}, {"per": "day", "on_exceed": "pause"},
    )  # fmt: skip
    assert (await app.limits.get("model")).concurrency is None
    assert (await app.budgets.get("nightly")).per == "day"
    assert await app.register(overwrite=True) == []
    assert (await app.limits.get("model")).concurrency == 3
    assert (await app.budgets.get("nightly")).on_exceed == "fail"


async def test_each_rule_of_a_declared_limit_is_compared(app: StoreApp) -> None:
    app.limit("customers", rate={"usd": 5}, burst={"usd": 9}, keyed=True, fair=True, weights={"acme": 3})
    await app.limits.set("customers", rate={"usd": 6}, keyed=False)
    (found,) = await app.register()
    assert dict(found.declared) == {
        "rate": {"usd": 5}, "burst": {"usd": 9}, "keyed": True, "fair": True, "weights": {"acme": 3},
    }  # fmt: skip
    assert dict(found.registered) == {
        "rate": {"usd": 6},
        "burst": {"usd": 6},
        "keyed": False,
        "fair": False,
        "weights": {},
    }


async def test_a_budget_that_was_raised_is_reported_and_its_spending_stays(app: StoreApp) -> None:
    nightly = app.budget("nightly", {"usd": 20}, timezone="Europe/Berlin")

    @app.task(budgets=[nightly])
    async def summarize(ctx: interlock.Context) -> None:
        ctx.usage(usd=7)

    assert await app.register() == []
    await summarize.enqueue()
    await app.drain()
    await app.budgets.raise_by(nightly, {"usd": 10})
    (found,) = await app.register()
    assert (dict(found.declared), dict(found.registered)) == ({"amount": {"usd": 20}}, {"amount": {"usd": 30}})
    assert await app.register(overwrite=True) == []
    budget = await app.budgets.get(nightly)
    assert (budget.amount, budget.spent) == ({"usd": 20}, {"usd": 7})


async def test_a_schedule_whose_task_names_declared_objects_is_registered_with_them(
    app: StoreApp, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(schedule=WEEKDAYS, limits=["model"], budgets=["nightly"], agent=("worker", "reader"))
    async def read() -> None: ...

    app.agent("worker", "reader", max_concurrency=2)
    app.budget("nightly", {"usd": 20}, per="day")
    app.limit("model", concurrency=1)
    await app.drain()
    assert warnings(caplog) == []
    job = await app.schedules.run("read")
    assert job.budgets == ("nightly",)


async def test_an_agent_that_a_job_created_is_registered_without_a_report(app: StoreApp) -> None:
    @app.task(agent=("worker", "reader"))
    async def read() -> None: ...

    await read.enqueue()
    app.agent("worker", "reader", max_concurrency=2)
    assert await app.register() == []
    assert (await app.agents.get("worker", "reader")).max_concurrency == 2


def test_invalid_declarations_are_rejected() -> None:
    app = interlock.App("sqlite:///unused.db")

    async def takes(n: int) -> None: ...

    with pytest.raises(TypeError, match="takes has a schedule, which enqueues it without arguments"):
        app.task(schedule=WEEKDAYS)(takes)
    assert app.tasks == {}
    given: Any = "0 7 * * *"
    with pytest.raises(TypeError, match=r"expected interlock\.Cron"):
        app.task(schedule=given)
    with pytest.raises(interlock.errors.Invalid):
        interlock.Cron("0 7 * *")
    with pytest.raises(interlock.errors.Invalid):
        interlock.Cron("0 7 * * *", timezone="Mars/Olympus")
    app.agent("worker", "reader")
    with pytest.raises(ValueError, match="agent worker/reader is declared twice"):
        app.agent("worker", "reader")


def test_invalid_limits_and_budgets_are_rejected_where_they_are_declared() -> None:
    app = interlock.App("sqlite:///unused.db")
    wrong: Any = "3"
    week: Any = "week"
    for given, message in (
        ({}, "concurrency or rate"),
        ({"concurrency": 0}, "expected 1 to 1000000"),
        ({"concurrency": 1, "burst": {"usd": 5}}, "burst needs rate"),
        ({"concurrency": 1, "fair": True}, "fair"),
        ({"concurrency": 1, "weights": {"acme": 2}}, "weights"),
        ({"rate": {"usd": 5}, "per": 0}, "per_seconds"),
    ):
        with pytest.raises(interlock.errors.Invalid, match=message):
            app.limit("model", **given)
    with pytest.raises(interlock.errors.Invalid, match="name must be"):
        app.limit("", concurrency=1)
    with pytest.raises(interlock.errors.Invalid, match="cannot begin with"):
        app.limit("budget:nightly", concurrency=1)
    with pytest.raises(TypeError, match="limit 'model'"):
        app.limit("model", concurrency=wrong)
    with pytest.raises(interlock.errors.Invalid, match="amount is empty"):
        app.budget("nightly", {})
    with pytest.raises(interlock.errors.Invalid, match="timezone"):
        app.budget("nightly", {"usd": 20}, timezone="Mars/Olympus")
    with pytest.raises(interlock.errors.Invalid, match="name is too long"):
        app.budget("n" * 200, {"usd": 20})
    with pytest.raises(TypeError, match="budget 'nightly'"):
        app.budget("nightly", {"usd": wrong})
    with pytest.raises(ValueError, match="week"):
        app.budget("nightly", {"usd": 20}, per=week)
    app.limit("nightly", concurrency=1)
    app.budget("nightly", {"usd": 20})
    with pytest.raises(ValueError, match="limit nightly is declared twice"):
        app.limit("nightly", concurrency=1)
    with pytest.raises(ValueError, match="budget nightly is declared twice"):
        app.budget("nightly", {"usd": 20})


async def test_the_schedule_of_a_task_enqueues_it_and_a_worker_runs_it(app: StoreApp, clock: ManualClock) -> None:
    ticks: list[str] = []

    @app.task(schedule=interlock.Cron("30 6 * * *", timezone="Europe/Berlin"))
    async def read(ctx: interlock.Context, source: str = "tides") -> str:
        ticks.append((ctx.job.headers or {})["tick"])
        return source

    await app.drain()
    assert ticks == []
    for n in (1, 2):
        due = (await app.schedules.get("read")).next_at
        assert due is not None
        clock.now = micros(due)
        await app.engine.schedules.fire_due()

        async def is_enqueued(wanted: int = n) -> bool:  # maybe by the maintenance of the server
            return len(await app.jobs.list(type="read")) == wanted

        await eventually(is_enqueued)
        await app.drain()
        assert ticks[-1] == due.isoformat(timespec="microseconds").replace("+00:00", "Z")
    for job in await app.jobs.list(type="read"):
        assert (job.status, job.created_by) == (interlock.Status.SUCCEEDED, "schedule:read")
        assert (await app.jobs.get(job.id)).result == "tides"
