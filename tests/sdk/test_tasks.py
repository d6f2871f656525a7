"""Declaring tasks, calling them, and enqueuing what can be run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, Flag
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

import interlock
from interlock.domain.job import DEFAULT_MAX_ATTEMPTS
from interlock.domain.lifecycle import Status
from interlock.errors import IdempotencyKeyReuse, Invalid
from interlock.sdk.values import time_of
from tests.support.apps import TENANT, StoreApp
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import SECOND, ManualClock


@dataclass
class Place:
    x: int
    y: int = 0


class Tide(msgspec.Struct):
    height: float


class Colour(Enum):
    RED = "red"


class Rights(Flag):
    READ = 1
    WRITE = 2


class Stay(pydantic.BaseModel):
    span: timedelta


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: str = pydantic.Field(alias="Name")
    place: dict[str, int] = {}

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def length(self) -> int:
        return len(self.name)


class Login(pydantic.BaseModel):
    user: str = "ada"
    password: pydantic.SecretStr = pydantic.SecretStr("")
    internal: int = pydantic.Field(default=0, exclude=True)
    when: Any = None
    inner: Login | None = None
    many: list[Login] = []
    _cache: list[int] = pydantic.PrivateAttr(default_factory=lambda: [id(object())])


class Models(pydantic.RootModel[list[Model]]):
    pass


@pytest.mark.parametrize(
    ("login", "place"),
    [
        (Login(password=pydantic.SecretStr("hush")), "Login.password"),
        (Login(internal=1), "Login.internal"),
        (Login(when=datetime(2027, 1, 1, tzinfo=UTC)), "Login.when"),
        (Login(inner=Login(internal=1)), "Login.inner.internal"),
        (Login(many=[Login(), Login(password=pydantic.SecretStr("hush"))]), r"Login.many\[1\].password"),
    ],
)
async def test_a_model_that_would_arrive_as_another_type_is_rejected_at_enqueue(
    app: StoreApp, login: Login, place: str
) -> None:
    @app.task
    async def enter(login: Login) -> None: ...

    @app.task
    async def anything(what: Any) -> None: ...

    for refused in (enter.enqueue(login), anything.enqueue([login]), interlock.Queue("q", app).push(login)):
        with pytest.raises(TypeError, match=f"{place} cannot be sent unchanged") as reported:
            await refused
        assert "hush" not in str(reported.value)
    with pytest.raises(TypeError, match=r"call 1: .*cannot be sent unchanged"):
        await enter.enqueue_many([{"login": Login()}, {"login": login}])


async def test_a_model_that_round_trips_is_accepted(app: StoreApp) -> None:
    @app.task
    async def enter(login: Login) -> str:
        return repr(login)

    login = Login(when=(1, [2]), inner=Login(user="é"), many=[Login()], internal=0)
    handle = await enter.enqueue(login)
    await app.drain()
    assert await handle.result(timeout=0) == repr(login).replace("(1, [2])", "[1, [2]]")


async def test_a_task_is_still_a_plain_function(app: StoreApp) -> None:
    @app.task
    async def add(a: int, b: int = 1) -> int:
        """Adds."""
        return a + b

    @app.task(name="other", max_attempts=7)
    def multiply(a: int, b: int) -> int:
        return a * b

    assert await add(1, b=2) == 3
    assert multiply(3, 4) == 12
    assert (add.__name__, add.__doc__, add.name, multiply.name) == ("add", "Adds.", "add", "other")


async def test_two_tasks_of_one_name_are_rejected(app: StoreApp) -> None:
    @app.task
    def twin() -> None: ...

    here = r"[^ ]+<locals>\.\S+ \(\S+test_tasks\.py:\d+\)"
    with pytest.raises(ValueError, match=rf"two tasks are named 'twin': {here} and {here}; .*@app\.task\(name=…\)"):
        app.task(name="twin")(lambda: None)
    with pytest.raises(ValueError, match="two tasks are named 'twin'"):
        app.task(priority=3)(twin.function)  # the same function with other options
    assert app.tasks == {"twin": twin}


async def test_a_module_that_is_loaded_again_repeats_its_declarations(app: StoreApp) -> None:
    def load(priority: int = 3) -> None:
        @app.task(priority=priority, fail_on=KeyError, schedule=interlock.Cron("0 7 * * *"))
        async def again() -> int:
            return 1

    load()
    first = app.tasks["again"]
    load()
    assert app.tasks["again"] is not first
    with pytest.raises(ValueError, match="two tasks are named 'again'"):
        load(priority=4)


async def test_arguments_of_every_kind_round_trip(app: StoreApp) -> None:
    got: list[Any] = []

    @app.task
    async def take(
        n: int, when: datetime, span: timedelta, place: Place, places: list[Place], tide: Tide, colour: Colour,
        model: Model, models: Models, path: Path, anything: object, rights: dict[str, Rights], stay: Stay,
        maybe: Model | None = None, flag: bool = True,
    ) -> Place:  # fmt: skip
        got.extend([n, when, span, place, places, tide, colour, model, models, path, anything, rights, stay])
        got.extend([maybe, flag])
        return place

    await app.register()  # so that the schema is held against the same values

    when = datetime(2027, 1, 2, tzinfo=UTC)
    sent: list[Any] = [
        1,
        when,
        timedelta(days=-1, microseconds=3),
        Place(1, 2),
        [Place(3)],
        Tide(1.5),
        Colour.RED,
        Model(Name="m"),
        Models([Model(Name="n")]),
        Path("/var/tides"),
        {"k": [None]},
        {"ada": Rights.READ | Rights.WRITE, "bob": Rights(0)},
        Stay(span=timedelta(seconds=1.5)),
    ]
    handle = await take.enqueue(*sent)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == Place(1, 2)
    assert got == [*sent, None, True]


@pytest.mark.parametrize(
    ("arguments", "fault", "about"),
    [
        ({}, TypeError, "missing a required argument: 'n'"),
        ({"n": 1, "m": 2}, TypeError, "unexpected keyword argument 'm'"),
        ({"n": "1"}, Invalid, "Expected `int`, got `str`"),
        ({"n": 1, "place": {"x": "here"}}, Invalid, "place/x"),
        ({"n": 1, "place": {"z": 1}}, Invalid, "x"),
        ({"n": 1, "model": {"name": 5}}, Invalid, "model"),
        ({"n": object()}, Invalid, "cannot be serialized as JSON"),
        ({"n": 1, "more": "half a pair \ud800"}, Invalid, "lone surrogate"),
        ({"n": 1, "more": [{"deep": float("nan")}]}, Invalid, "NaN and infinity cannot be serialized as JSON"),
    ],
)
async def test_an_invalid_call_fails_at_enqueue_and_adds_nothing(
    app: StoreApp, arguments: dict[str, Any], fault: type[Exception], about: str
) -> None:
    @app.task
    async def strict(n: int, place: Place | None = None, model: Model | None = None, more: Any = None) -> None: ...

    with pytest.raises(fault, match=about):
        await strict.enqueue(**arguments)
    with pytest.raises(fault, match=about):
        await strict.enqueue_many([{"n": 1}, arguments])
    assert await app.drain() == 0


async def test_functions_that_cannot_be_called_by_name_are_rejected_at_declaration(app: StoreApp) -> None:
    for wrong in (lambda *args: None, lambda **kwargs: None):
        with pytest.raises(TypeError, match="named parameters only"):
            app.task(name="wrong")(wrong)

    def two(a: interlock.Context, b: interlock.Context) -> None: ...

    with pytest.raises(TypeError, match="more than one context"):
        app.task(two)

    def pages() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="pages is a generator"):
        app.task(pages)
    with pytest.raises(TypeError, match="'pages' is not a function"):
        app.task("pages")  # type: ignore[call-overload]

    class Desk:
        def sell(self, amount: int) -> int:
            return amount

    with pytest.raises(TypeError, match=r"Desk\.sell is a method"):
        app.task(Desk.sell)
    assert app.tasks == {}
    app.task(Desk().sell)
    assert [*app.tasks] == ["sell"]


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 201])
def test_an_invalid_task_name_is_rejected_at_declaration(app: StoreApp, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 200 visible characters"):
        app.task(name=name)(lambda: None)
    assert app.tasks == {}


async def test_the_context_is_found_by_its_type_at_any_position(app: StoreApp) -> None:
    @app.task
    async def odd(n: int, *, here: interlock.Context) -> str:
        return f"{n} {here.id}"

    @app.task
    async def either(n: int, here: interlock.Context | None = None) -> str:
        return f"{n} {here and here.id}"

    handle = await odd.enqueue(n=4)  # type: ignore[call-arg]
    other = await either.enqueue(n=5)
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == f"4 {handle.id}"
    assert await other.result(timeout=RETRY_SECONDS) == f"5 {other.id}"
    assert await either(6) == "6 None"


async def test_a_first_parameter_ctx_is_the_context_without_an_annotation(app: StoreApp) -> None:
    @app.task
    async def plain(ctx, n):  # type: ignore[no-untyped-def]
        return f"{n} {ctx.id}"

    @app.task
    async def annotated(ctx: str) -> str:
        return ctx

    handle, other = await plain.enqueue(7), await annotated.enqueue("text")
    await app.drain()
    assert await handle.result(timeout=RETRY_SECONDS) == f"7 {handle.id}"
    assert await other.result(timeout=RETRY_SECONDS) == "text"


async def test_options_become_fields_of_the_job(app: StoreApp, clock: ManualClock) -> None:
    @app.task(
        max_attempts=5, priority=3, timeout=timedelta(minutes=1), backoff={"kind": "fixed", "base_seconds": 5},
        requires=["gpu"], agent=("planner", "ada"), tags=["nightly"], headers={"k": "v"}, affinity_key="a",
        repository="org/repo", requested_by="cron", expiry_delay=2,
    )  # fmt: skip
    async def full() -> None: ...

    job = await (await full.enqueue()).refresh()
    assert (job.max_attempts, job.priority, job.timeout, job.requires) == (5, 3, timedelta(minutes=1), ("gpu",))
    assert (job.agent, job.tags, job.headers) == (("planner", "ada"), ("nightly",), {"k": "v"})
    assert (job.affinity_key, job.repository, job.requested_by) == ("a", "org/repo", "cron")
    assert job.expiry_delay == timedelta(seconds=2)
    other = await (await full.options(max_attempts=1, delay=60).enqueue()).refresh()
    assert (other.max_attempts, other.priority, other.run_at) == (1, 3, time_of(clock.now + 60 * SECOND))


async def test_unset_options_are_left_to_the_server(app: StoreApp) -> None:
    @app.task
    async def bare() -> None: ...

    job = await (await bare.enqueue()).refresh()
    assert (job.max_attempts, job.priority, job.payload) == (DEFAULT_MAX_ATTEMPTS, 0, {})


def test_a_string_where_a_list_is_expected_is_not_split_into_letters(app: StoreApp) -> None:
    @app.task
    async def bare() -> None: ...

    wrong: Any
    for wrong in ({"tags": "red"}, {"requires": "gpu"}, {"agent": "ab"}, {"agent": ("planner",)}):
        with pytest.raises(TypeError, match="expected a "):
            bare.options(**wrong)
    with pytest.raises(interlock.Error, match="capabilities is 'gpu': expected a list of names"):
        interlock.Worker(app, capabilities="gpu")


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 1.5}, {"priority": "5"}, {"priority": True}, {"max_attempts": 5.0}, {"tags": [1]}, {"tags": 1},
        {"requires": [1]}, {"headers": {"k": 1}}, {"idempotency_key": 5}, {"agent": ("planner", 1)}, {"agent": {"kind": "planner"}},
        {"timeout": "5m"}, {"delay": True}, {"run_at": "tomorrow"}, {"repository": 5}, {"backoff": "fixed"},
    ],
)  # fmt: skip
def test_an_option_of_another_type_is_rejected_where_it_is_passed(app: StoreApp, wrong: Any) -> None:
    @app.task
    async def bare() -> None: ...

    with pytest.raises(TypeError, match=next(iter(wrong))):
        bare.options(**wrong)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [("10", TypeError), (True, TypeError), (0.5, ValueError), (-1, ValueError),
     (3600.1, ValueError), (float("nan"), ValueError), (float("inf"), ValueError)],
)  # fmt: skip
def test_a_lease_too_short_for_heartbeats_is_rejected_at_declaration(
    app: StoreApp, wrong: Any, kind: type[Exception]
) -> None:
    async def bare() -> None: ...

    with pytest.raises(kind, match="lease"):
        app.task(lease=wrong)(bare)
    with pytest.raises(kind, match="lease"):
        app.task(bare).options(lease=wrong)
    assert app.task(name="longest", lease=3600)(bare)._lease_seconds == 3600
    assert app.task(name="a span", lease=timedelta(minutes=1))(bare)._lease_seconds == 60


async def test_an_agent_may_be_a_dict_and_an_option_of_none_is_unset(app: StoreApp) -> None:
    @app.task(agent=("planner", "ada"), tags=["nightly"], priority=3)
    async def full() -> None: ...

    unset: Any = {"agent": None, "tags": None, "priority": None, "idempotency_key": None}
    other: Any = {"agent": {"kind": "worker", "id": "bob"}, "headers": MappingProxyType({"k": "v"})}
    plain = await (await full.options(**unset).enqueue()).refresh()
    named = await (await full.options(**other).enqueue()).refresh()
    assert (plain.agent, tuple(plain.tags), plain.priority, full.options(**unset).has_key) == (None, (), 0, False)
    assert (named.agent, named.headers) == (("worker", "bob"), {"k": "v"})


async def test_an_unknown_option_is_an_error(app: StoreApp) -> None:
    with pytest.raises(TypeError, match="unknown task option 'retries'"):
        app.task(retries=3)(lambda: None)  # type: ignore[call-overload]


async def test_the_same_key_is_the_same_job_unless_the_call_differs(app: StoreApp) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    first = await pay.options(idempotency_key="order-1").enqueue(5)
    again = await pay.options(idempotency_key="order-1").enqueue(5)
    assert (again.id, first.replayed, again.replayed) == (first.id, False, True)
    with pytest.raises(IdempotencyKeyReuse):
        await pay.options(idempotency_key="order-1").enqueue(6)


async def test_a_batch_is_added_completely_or_not_at_all(app: StoreApp) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    handles = await pay.enqueue_many({"amount": n} for n in range(1200))
    assert len({handle.id for handle in handles}) == 1200
    await pay.options(idempotency_key="taken").enqueue(1)
    with pytest.raises(IdempotencyKeyReuse):
        await pay.options(idempotency_key="taken").enqueue_many([{"amount": 2}])
    # Good ones come before and after the one that is refused: none of them is added.
    with pytest.raises(IdempotencyKeyReuse):
        await pay.options(idempotency_key="shared").enqueue_many(
            [{"amount": 1}, {"amount": 1}, {"amount": 2}, {"amount": 1}]
        )
    assert sum(stats.ready for stats in await app.store.registry.stats(TENANT)) == 1201
    assert not (await pay.options(idempotency_key="shared").enqueue(3)).replayed


@pytest.mark.parametrize(
    ("wrong", "error", "reported"),
    [
        ({"amount": "two"}, Invalid, "call 1: .*Expected `int`, got `str`"),
        ({"sum": 2}, TypeError, "call 1: .*missing a required argument: 'amount'"),
        ((2,), TypeError, r"call 1: .*a call is \(2,\): expected a dict of named arguments"),
    ],
)
async def test_an_invalid_call_among_many_is_named_by_its_index(
    app: StoreApp, wrong: Any, error: type[Exception], reported: str
) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    with pytest.raises(error, match=reported):
        await pay.enqueue_many([{"amount": 1}, wrong])


async def test_a_result_is_awaited_no_longer_than_requested(app: StoreApp) -> None:
    @app.task
    async def never() -> None: ...

    handle = await never.enqueue()
    with pytest.raises(TimeoutError, match="still queued"):
        await handle.result(timeout=0.01)


async def test_a_result_of_another_type_than_declared_is_an_error_that_names_the_job(app: StoreApp) -> None:
    @app.task
    async def measure() -> int:
        return "much"  # type: ignore[return-value]

    handle = await measure.enqueue()
    await app.drain()
    with pytest.raises(Invalid, match=f"{handle.id} .*Expected `int`, got `str`"):
        await handle.result(timeout=timedelta(seconds=RETRY_SECONDS))
    assert (await handle.refresh()).result == "much"


async def test_a_failed_job_raises_its_error(app: StoreApp) -> None:
    @app.task
    async def bad() -> None:
        raise interlock.Fail("no", kind="refused", details={"a": 1})

    handle = await bad.enqueue()
    await app.drain()
    with pytest.raises(interlock.JobFailed, match="ended as failed: no") as failed:
        await handle.result(timeout=RETRY_SECONDS)
    assert failed.value.error == {"message": "no", "kind": "refused", "details": {"a": 1}}
    assert (await handle.refresh()).status == Status.FAILED


async def test_a_terminal_job_is_redriven_after_a_step(app: StoreApp) -> None:
    searched: list[int] = []

    @app.task(max_attempts=1)
    async def work(ctx: interlock.Context) -> str:
        await ctx.step("search", lambda: searched.append(1))
        if ctx.job.redrive_of is None:
            raise RuntimeError
        return ctx.job.redrive_of

    handle = await work.enqueue()
    await app.drain()
    again = await handle.redrive("search", idempotency_key="second try")
    assert (await handle.redrive("search", idempotency_key="second try")).replayed
    await app.drain()
    assert await again.result(timeout=RETRY_SECONDS) == handle.id
    assert searched == [1]


async def test_a_terminal_job_is_redriven_with_changes(app: StoreApp) -> None:
    @app.task(max_attempts=1, tags=["first"])
    async def work(n: int) -> int:
        if n < 0:
            raise ValueError(n)
        return n

    handle = await work.enqueue(-1)
    await app.drain()
    again = await handle.redrive(payload={"n": 7}, priority=5, tags=["second"], max_attempts=4, delay=timedelta(0))
    job = await again.refresh()
    assert (job.payload, job.priority, job.tags, job.max_attempts) == ({"n": 7}, 5, ("second",), 4)
    await app.drain()
    assert await again.result(timeout=RETRY_SECONDS) == 7


async def test_a_cancel_reaches_the_children_with_cascade(app: StoreApp) -> None:
    @app.task
    async def child() -> None: ...

    first = await child.enqueue()
    below = await child.options(parent_id=first.id).enqueue()
    assert await first.cancel("all of it", cascade=True) == Status.CANCELLED
    assert (await below.refresh()).status == Status.CANCELLED


async def test_a_registered_task_rejects_invalid_payloads_from_any_producer(app: StoreApp) -> None:
    @app.task(max_attempts=9, requires=["gpu"], lease=120)
    async def strict(n: int, place: Place | None = None) -> None: ...

    await app.register()
    kept = await app.engine.registry.type(TENANT, "strict")
    assert (kept.requires, kept.defaults.max_attempts, kept.defaults.lease_seconds) == (("gpu",), 9, 120.0)
    client = await app._client()
    good = strict._request((), {"n": 1, "place": Place(1)})
    await client.jobs.enqueue([good])
    wrong = msgspec.structs.replace(good, payload=msgspec.Raw(b'{"n":"x"}'))
    with pytest.raises(Invalid, match="payload"):
        await client.jobs.enqueue([wrong])
