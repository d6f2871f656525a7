"""One tenant with one of everything, so that every route can be called on something that exists."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from interlock.api.app import routes
from interlock.api.routes import Route
from interlock.domain.approval import RequestApproval
from interlock.domain.artifact import File, Holder
from interlock.domain.effect import BeginEffect
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, user
from interlock.domain.timestamps import when
from interlock.wire import AgentName, JobRequest, LimitUse, SubscriptionRequest, TokenRequest
from interlock.wire.budgets import BudgetRequest
from interlock.wire.channels import ChannelRequest
from interlock.wire.limits import LimitRequest
from interlock.wire.schedule import ScheduleRequest
from tests.api.rig import NEVER, Api

WORKER: Final = "w1"
_PARAMETER: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class World:
    """Ids of what is there."""

    tenant: str
    queued: str
    running: str
    fence: int
    artifact: str
    approval: str
    subscription: str
    token: str
    soon: str

    def path(self, route: Route) -> str:
        """The path of a route about what this tenant has."""
        return fill(route.path, self.named(route))

    def named(self, route: Route) -> dict[str, str]:
        works = "work" in route.roles or "artifacts" in route.path or route.name == "revoke"
        return {
            "job_id": self.running if works else self.queued,
            "artifact_id": self.artifact,
            "approval_id": self.approval,
            "subscription_id": self.subscription,
            "delivery_id": NEVER,
            "token_id": self.token,
            "topic": "news",
            "type": "work",
            "name": "known",
            "kind": "planner",
            "id": "one",
        }

    def body(self, route: Route) -> dict[str, Any] | None:
        """A body that the route takes, or None."""
        fence = {"fence": self.fence, "worker": WORKER}
        found: dict[str, dict[str, Any]] = {
            "enqueue": {"type": "work"},
            "enqueue_batch": {"jobs": [{"type": "work"}]},
            "edit_job": {"priority": 3},
            "claim": {"types": ["nothing-of-this-type"], "worker": WORKER},
            "heartbeat": fence,
            "heartbeats": {"items": [{"id": self.running, **fence}]},
            "watch_leases": {"items": [{"id": self.running, **fence}]},
            "save_checkpoint": {**fence, "seq": 1, "data": {"a": 1}},
            "save_step": {**fence, "name": "s", "occurrence": 0, "result": 1},
            "add_events": {**fence, "events": [{"message": "hi"}]},
            "send_message": {"name": "go", "payload": {"n": 1}},
            "begin_effect": {**fence, "name": "call", "occurrence": 1},
            "settle_effect": {**fence, "name": "charge", "occurrence": 1, "state": "done"},
            "append_to_stream": {**fence, "offset": 0, "chunks": [{"text": "a"}]},
            "complete": fence,
            "link_artifact": {**fence, "name": "site", "url": "https://example.com"},
            "fail": {**fence, "error": {"message": "no"}},
            "release": fence,
            "acknowledge_cancel": fence,
            "finishes": {"items": [{"id": self.running, "outcome": "complete", **fence}]},
            "open_approval": {**fence, "prompt": "Go on?"},
            "decide": {"decision": "approve"},
            "decide_by_link": {"decision": "approve", "token": "ilg_nobody"},
            "bulk": {"action": "cancel", "ids": []},
            "prune": {"days": 1},
            "put_type": {},
            "set_schedule": {"every_seconds": 60, "job": {"type": "work"}},
            "set_limit": {"concurrency": 2},
            "set_budget": {"amount": {"usd": 5}},
            "raise_budget": {"amount": {"usd": 5}},
            "raise_job_budget": {"amount": {"usd": 5}},
            "set_channel": {"kind": "slack", "url": "https://example.com/hook"},
            "hold_limit": {"until": self.soon},
            "put_agent": {},
            "subscribe": {"url": "https://example.com/hook", "events": ["job.succeeded"]},
            "create_token": {"roles": ["read"]},
        }
        if route.body is None:
            return None
        return found.get(route.name, {})

    def query(self, route: Route) -> dict[str, str]:
        return {"name": "file", "worker": WORKER} if route.name == "put_artifact" else {}

    def headers(self, route: Route) -> dict[str, str]:
        return {"interlock-fence": str(self.fence)} if route.name == "put_artifact" else {}


def fill(path: str, named: dict[str, str]) -> str:
    return _PARAMETER.sub(lambda found: named[found[1]], path)


def native() -> list[Route]:
    """The routes that need a credential."""
    return [route for route in routes() if route.needs_credential]


async def request(api: Api, route: Route, world: World, **changed: Any) -> Any:
    """Call a route in a way that should work."""
    asked: dict[str, Any] = {"params": world.query(route), "headers": world.headers(route)} | changed
    if route.raw_body:
        asked["content"] = b"bytes"
    path = asked.pop("path", None) or world.path(route)
    if route.name.startswith(("stream_", "follow_")):
        async with api.http.stream(route.method, path, headers=api.headers() | asked["headers"]) as response:
            if response.status_code != 200:
                await response.aread()
            return response
    return await api.call(route.method, path, asked.pop("body", world.body(route)), **asked)


async def make_world(api: Api, tenant: str) -> World:
    """Put one of everything into a tenant."""
    engine, who = api.engine, Principal(tenant, user("maker"), ROLES)
    await engine.flow.set(who, "known", LimitRequest(concurrency=1))
    await engine.budgets.set(who, "known", BudgetRequest(amount={"usd": 10.0}))
    await engine.channels.set(who, "known", ChannelRequest(kind="slack", url="https://example.com/hook"))
    running = await engine.jobs.enqueue(
        who, JobRequest(type="held", limits=[LimitUse(name="known")], budget={"usd": 5.0})
    )
    (held,) = await engine.leases.claim(tenant, ClaimFilter(WORKER, types=frozenset({"held"}), lease_seconds=3600.0))
    assert held.id == running.id
    waiting = await engine.jobs.enqueue(who, JobRequest(type="asks"))
    (asks,) = await engine.leases.claim(tenant, ClaimFilter(WORKER, types=frozenset({"asks"})))
    opened = await engine.approvals.open(who, RequestApproval(waiting.id, asks.fence, WORKER, "", "Go on?"))
    assert opened.approval is not None
    (artifact,) = await engine.artifacts.attach(tenant, Holder(held.id, held.fence, WORKER), [File("a.txt", b"hello")])
    await engine.registry.set_type(who, "known")
    await engine.schedules.set(who, "known", ScheduleRequest(every_seconds=3600, job=JobRequest(type="work")))
    await engine.registry.set_agent(who, "planner", "one")
    queued = await engine.jobs.enqueue(
        who, JobRequest(type="work", agent=AgentName(kind="planner", id="two"), budget={"usd": 5.0})
    )
    wanted = SubscriptionRequest(url="https://example.com/hook", events=["job.failed"])
    subscription = (await engine.webhooks.subscribe(who, wanted)).subscription
    token = await engine.tokens.create(who, TokenRequest(roles=["read"]))
    await engine.effects.begin(tenant, BeginEffect(held.id, held.fence, WORKER, "charge", 1))
    return World(
        tenant, queued.id, held.id, held.fence, artifact.id, opened.approval.id,
        subscription.id, token.token.id, when(await engine.queries.now() + 60_000_000),
    )  # fmt: skip
