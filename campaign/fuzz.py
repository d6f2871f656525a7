"""Requests and inputs that nobody would write: every route, role and tenant, and the decoders behind them.

Requests go to a real server over either engine with auth on. Each names a route, a caller of one of two tenants (of
any role, or nobody), things of either tenant, and values that are wrong, hostile or right. The promise: no answer is
5xx, none contains what belongs to another tenant, and a third tenant, whose things are named but whose tokens nobody
has, does not change. A decoder returns a value or raises an error of Interlock, in bounded time.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import httpx2
import msgspec
import structlog

from campaign.results import Outcome, Plan, Stopwatch
from campaign.stores import scratch_parent, several_stores
from interlock.api import body as bodies
from interlock.api.app import routes
from interlock.api.options import Options
from interlock.api.routes import Route
from interlock.domain import json_text, schedule
from interlock.domain.job import Filter
from interlock.domain.principal import ROLES, Principal, user
from interlock.errors import Error
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import JobRequest
from tests.api.rig import Api, serving
from tests.api.test_poison import FULL, HEADERS, QUERIES, RAW, SEGMENTS, VALUES
from tests.api.world import World, fill, make_world
from tests.support.postgres import Postgres, postgres
from tests.support.stores import ENGINES, START, ManualClock, make_template

FRESH_AFTER: Final = 2000  # requests until the tenants are new ones: most of theirs has been cancelled or deleted then
TOGETHER: Final = 8
SLOWEST_SECONDS: Final = 5.0  # of CPU time, for one input of a decoder
POISONED_HEADERS: Final = ("idempotency-key", "if-match", "interlock-fence", "traceparent", "range", "x-request-id")


class Tenant(NamedTuple):
    """A tenant with one of everything, a secret in its data, and callers."""

    world: World
    secret: str
    callers: dict[str, Api]  # by role


def judge(status: int, text: str, foreign: Sequence[str]) -> str | None:
    """Return what is wrong with an answer to a caller, or None; `foreign` are the secrets of other tenants."""
    if status >= 500:
        return f"answer {status}"
    return "an answer with data of another tenant" if any(secret in text for secret in foreign) else None


async def make_tenant(api: Api, name: str) -> Tenant:
    """Fill a tenant whose every text says whose it is."""
    secret = f"secret-of-{name}"
    world = await make_world(api, name)
    who = Principal(name, user(secret), ROLES)
    for _ in range(3):
        payload = msgspec.Raw(json.dumps({"of": secret}).encode())
        await api.engine.jobs.enqueue(who, JobRequest(type="work", payload=payload, tags=[secret], requested_by=secret))
    callers = {role: await api.as_role(role, tenant=name) for role in sorted(ROLES)}
    return Tenant(world, secret, callers)


class Author:
    """Writes requests, from a seed."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._routes = [route for route in routes() if not route.name.startswith(("stream_", "follow_"))]

    def spoiled(self, value: Any) -> Any:
        """Replace some values, at any depth, and add or leave out members."""
        dice = self._dice
        if dice.random() < 0.08:
            return copy.deepcopy(dice.choice(VALUES))
        if isinstance(value, dict):
            found = {name: self.spoiled(inner) for name, inner in value.items() if dice.random() > 0.03}
            if dice.random() < 0.03:
                found["surprise"] = dice.choice(VALUES)
            return found
        return [self.spoiled(inner) for inner in value] if isinstance(value, list) else value

    def body(self, route: Route, world: World) -> bytes | None:
        dice = self._dice
        if route.body is None:
            return bytes(dice.randbytes(20)) if route.raw_body else None
        if dice.random() < 0.05:
            return dice.choice(RAW)
        good = world.body(route) if dice.random() < 0.5 else FULL.get(route.name, world.body(route))
        bad = self.spoiled(good or {})
        if isinstance(bad, dict) and "wait_seconds" in bad:
            bad["wait_seconds"] = 0
        return json.dumps(bad).encode()

    def target(self, route: Route, world: World) -> str:
        dice = self._dice
        named = world.named(route)
        for name in named:
            if dice.random() < 0.05:
                named[name] = dice.choice(SEGMENTS)
        path = fill(route.path, named)
        fields = [field for field in route.query.__struct_fields__ if field != "wait_seconds"]
        asked = dict(world.query(route))
        for field in fields:
            if dice.random() < 0.15:
                asked[field] = dice.choice(QUERIES)
        pairs = [f"{name}={quote(value.encode(errors='surrogatepass'))}" for name, value in asked.items()]
        return f"{path}?{'&'.join(pairs)}" if pairs else path

    def request(self, tenants: Sequence[Tenant], bystander: Tenant) -> tuple[Tenant, dict[str, Any]]:
        """Return the tenant of the caller, and the request."""
        dice = self._dice
        route, tenant = dice.choice(self._routes), dice.choice(tenants)
        about = tenant if dice.random() < 0.6 else dice.choice((*tenants, bystander))
        fitting = sorted(route.roles or ROLES) if dice.random() < 0.7 else sorted(ROLES)
        caller = None if dice.random() < 0.05 else tenant.callers[dice.choice(fitting)]
        headers = dict(about.world.headers(route))
        content = self.body(route, about.world)
        if content is not None and not route.raw_body:
            headers["content-type"] = "application/json"
        if dice.random() < 0.1:
            headers[dice.choice(POISONED_HEADERS)] = dice.choice(HEADERS).encode()  # type: ignore[assignment] # as bytes
        if caller is not None:
            headers |= caller.headers()
        return tenant, {
            "method": route.method, "url": self.target(route, about.world), "content": content, "headers": headers,
        }  # fmt: skip


async def condition(store: Store, tenant: str) -> tuple[Any, ...]:
    """What must not change in a tenant that nobody may enter."""
    jobs = [(job.id, job.version) for job in await store.find(tenant, Filter(limit=1000))]
    verdict = await store.audit.verify(tenant)
    return (*jobs, verdict.first_bad, verdict.jobs)


async def fuzz_server(
    engine: str, store: Store, clock: ManualClock, plan: Plan, share: int, outcome: Outcome, watch: Stopwatch
) -> Counter[int]:
    """Send the share of one engine; returns how often each status was answered."""
    answered: Counter[int] = Counter()
    numbers, author = itertools.count(1), Author(random.Random(f"{plan.seed} {engine}"))
    with tempfile.TemporaryDirectory(dir=scratch_parent()) as directory:
        options, objects = Options(auth=True, tenant="nobody"), FileObjects(Path(directory))
        async with (
            serving(store, clock, options, objects=objects) as api,
            httpx2.AsyncClient(base_url=api.url, trust_env=False, timeout=60.0) as http,
        ):
            while (left := share - answered.total()) > 0 and not watch.is_over and len(outcome.violations) < 20:
                names = [f"{engine}-{plan.seed}-{next(numbers)}" for _ in range(3)]
                *tenants, bystander = [await make_tenant(api, name) for name in names]
                before = await condition(store, bystander.world.tenant)
                for _ in range(0, min(FRESH_AFTER, left), TOGETHER):
                    if watch.is_over:
                        break
                    batch = [author.request(tenants, bystander) for _ in range(TOGETHER)]
                    answers = await asyncio.gather(*(http.request(**request) for _, request in batch))
                    clock.advance(0.01)
                    for (tenant, request), answer in zip(batch, answers, strict=True):
                        answered[answer.status_code] += 1
                        foreign = [other.secret for other in (*tenants, bystander) if other is not tenant]
                        if (fault := judge(answer.status_code, answer.text, foreign)) is not None:
                            outcome.violations.append(f"{engine}: {fault}: {str(request)[:400]}: {answer.text[:200]}")
                    outcome.done += TOGETHER
                if await condition(store, bystander.world.tenant) != before:
                    outcome.violations.append(f"{engine}: {bystander.world.tenant} was changed by another tenant")
                for tenant in tenants:
                    if (bad := (await store.audit.verify(tenant.world.tenant)).first_bad) is not None:
                        outcome.violations.append(f"{engine}: the history of {tenant.world.tenant}: {bad}")
    return answered


Decoder = Callable[[bytes], object]


def _of_body(route: Route) -> Decoder:
    assert route.body is not None
    kind, sanitizes = route.body, route.sanitizes
    return lambda data: bodies.decode(data, kind, limit=1 << 20, sanitizes=sanitizes)


def _timing(data: bytes) -> object:
    words = data.decode(errors="replace")
    return schedule.check(schedule.Timing(words, None, "UTC", None, None), created_at=START)


def decoders() -> dict[str, Decoder]:
    """Everything that reads what callers send."""
    found: dict[str, Decoder] = {f"body of {route.name}": _of_body(route) for route in routes() if route.body}
    for route in routes():
        if route.query.__struct_fields__:
            found[f"query of {route.name}"] = lambda data, kind=route.query: bodies.query(data, kind)  # type: ignore[misc]
    found["json"] = lambda data: json_text.check(data, what="body", limit=1 << 20)
    found["sanitized json"] = lambda data: json_text.sanitize(data, what="body", limit=1 << 20)
    found["cron"] = _timing
    return found


def try_decoder(decoder: Decoder, data: bytes) -> str | None:
    """Return what is wrong with how a decoder takes an input, or None."""
    began = time.thread_time()
    try:
        decoder(data)
    except Error:
        pass
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    took = time.thread_time() - began
    return f"{took:.1f} s of CPU time" if took > SLOWEST_SECONDS else None


PIECES: Final = (
    b'{"', b'":', b"[", b"]", b"}", b",", b"null", b"1e999", b"-0", b"\\ud800", b"\\u0000", b"\xff",
    b"\xed\xa0\x80", b"0" * 400, b"[" * 300, b'{"a":' * 80, b"9" * 5000, b"%00", b"&", b"=", b"*/", b"L",
    b"#5", b"?", b"59-0", b"MON", b" ", b"\n", b'"', b"\\",
)  # fmt: skip


def mutated(seeds: Sequence[bytes], dice: random.Random) -> bytes:
    """Change a sample at some places."""
    data = bytearray(dice.choice(seeds))
    for _ in range(dice.choice((1, 1, 2, 4, 12))):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(4):
            case 0:
                data[at:at] = dice.choice(PIECES)
            case 1:
                del data[at : at + dice.choice((1, 1, 8, 100))]
            case 2 if data:
                data[at % len(data)] = dice.randrange(256)
            case _:
                other = dice.choice(seeds)
                data[at:] = other[dice.randrange(len(other) + 1) :]
    return bytes(data)


def fuzz_decoders(plan: Plan) -> Outcome:
    """Give each decoder its share of mutated samples."""
    outcome = Outcome("decoders", "inputs", plan.seed, plan.size)
    watch, dice = Stopwatch(plan, outcome), random.Random(plan.seed)
    seeds = [json.dumps(one).encode() for one in FULL.values()]
    seeds += [*RAW, b"limit=10&status=queued", b"after=3&name=x", b"0 7 * * 1-5", b"*/5 0-6 L * MON#2"]
    found = list(decoders().items())
    while not watch.is_over and len(outcome.violations) < 20:
        name, decoder = found[outcome.done % len(found)]
        data = mutated(seeds, dice)
        outcome.done += 1
        if (fault := try_decoder(decoder, data)) is not None:
            outcome.violations.append(f"{name}: {fault}: input {data[:200]!r}")
    return outcome


async def run_on(server: Postgres, plan: Plan, decoded: int) -> Outcome:
    """Send half of the requests to each engine, then try the decoders."""
    outcome = Outcome("fuzz", "requests", plan.seed, plan.size)
    watch = Stopwatch(plan, outcome)
    statuses = {}
    for engine, share in zip(ENGINES, (plan.size // 2, plan.size - plan.size // 2), strict=True):
        clock = ManualClock(START)
        async with several_stores(engine, 1, server, clock) as (store,):
            found = await fuzz_server(engine, store, clock, plan, share, outcome, watch)
        statuses[engine] = dict(sorted(found.items()))
    inputs = fuzz_decoders(Plan(plan.seed, decoded, plan.seconds, plan.say))
    outcome.violations += inputs.violations
    outcome.numbers |= {
        "answers": statuses,
        "routes": len(routes()),
        "decoders": len(decoders()),
        "inputs": inputs.done,
    }
    return outcome


def run(plan: Plan) -> Outcome:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with postgres() as server:
        asyncio.run(make_template(server))
        return asyncio.run(run_on(server, plan, plan.size))
