"""What people keep on a server: approvals, types, agents, tokens, subscriptions and artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from interlock import wire
from interlock.cli.remote import decode
from interlock.cli.remote.connection import ALL, ServerConnection
from interlock.client.http.decode import read
from interlock.domain import json_text
from interlock.domain.approval import Approval, ApprovalFilter, Decision
from interlock.domain.artifact import Artifact
from interlock.domain.principal import Principal
from interlock.domain.registry import Agent, JobType
from interlock.domain.token import Token
from interlock.domain.webhook import Delivery, DeliveryFilter, Subscription
from interlock.engine.approvals import ApprovalLink as MintedLink
from interlock.engine.artifacts import Download, Stream
from interlock.engine.tokens import CreatedToken
from interlock.engine.webhooks import Created, SubscriptionRequest
from interlock.errors import ArtifactLost, Invalid, NotFound
from interlock.wire import TokenRequest


def _path(*parts: str) -> str:
    return "/v1/" + "/".join(quote(part, safe="") for part in parts)


class RemoteApprovals:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def list(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        given = (("status", filter.status), ("job", filter.job_id))
        query = [(name, str(value)) for name, value in given if value is not None]
        before = filter.before
        beyond = None if before is None else lambda one: (one.opened_at, one.id) < before
        return await self._line.listed("/v1/approvals", decode.approval, limit=filter.limit, query=query, beyond=beyond)

    async def get(self, tenant: str, approval_id: str) -> Approval:
        return decode.approval((await self._line.get(_path("approvals", approval_id))).body)

    async def decide(
        self,
        who: Principal,
        approval_id: str,
        decision: Decision,
        *,
        comment: str | None = None,
        data: bytes | None = None,
        digest: str | None = None,
    ) -> Approval:
        kept = None if data is None else msgspec.Raw(_checked_json(data))
        body = {"decision": decision, "comment": comment, "data": kept, "digest": digest}
        answer = await self._line.post(_path("approvals", approval_id, "decide"), body, approval_id=approval_id)
        return decode.approval(answer.body)

    async def create_link(self, who: Principal, approval_id: str) -> MintedLink:
        answer = await self._line.post(_path("approvals", approval_id, "token"), {}, approval_id=approval_id)
        given = decode.members(answer.body)
        return MintedLink(decode.approval(given["approval"]), read(given["token"], str))


class RemoteRegistry:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def types(self, tenant: str) -> list[JobType]:
        return await self._line.listed("/v1/types", decode.job_type, limit=ALL)

    async def type(self, tenant: str, name: str) -> JobType:
        return decode.job_type((await self._line.get(_path("types", name))).body)

    async def set_type(
        self,
        who: Principal,
        name: str,
        *,
        schema: str | None = None,
        requires: Sequence[str] = (),
        defaults: Mapping[str, Any] | None = None,
    ) -> JobType:
        kept = None if schema is None else msgspec.Raw(_checked_json(schema.encode("utf-8", "surrogateescape")))
        body = {"schema": kept, "requires": list(requires), "defaults": defaults or None}
        return decode.job_type((await self._line.put(_path("types", name), body)).body)

    async def delete_type(self, who: Principal, name: str) -> None:
        await self._line.delete(_path("types", name))

    async def agents(self, tenant: str, *, after: tuple[str, str] = ("", ""), limit: int = 50) -> list[Agent]:
        beyond = None if after == ("", "") else lambda one: (one.kind, one.id) > after
        return await self._line.listed("/v1/agents", decode.agent, limit=limit, beyond=beyond)

    async def set_agent(
        self,
        who: Principal,
        kind: str,
        id: str,
        *,
        max_concurrency: int | None = None,
        strict: bool = False,
        defaults: Mapping[str, Any] | None = None,
    ) -> Agent:
        body = {"max_concurrency": max_concurrency, "strict": strict, "defaults": defaults or None}
        return decode.agent((await self._line.put(_path("agents", kind, id), body)).body)

    async def delete_agent(self, who: Principal, kind: str, id: str) -> None:
        await self._line.delete(_path("agents", kind, id), kind=kind, id=id)


class RemoteTokens:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def create(self, who: Principal, request: TokenRequest) -> CreatedToken:
        body = msgspec.structs.asdict(request)
        answer = await self._line.post("/v1/tokens", body, repeatable=request.key is not None, key=request.key or "")
        return CreatedToken(decode.token(answer.body), read(decode.members(answer.body)["token"], str))

    async def list(self, who: Principal, *, before: str | None = None, limit: int = 50) -> list[Token]:
        beyond = None if before is None else lambda one: one.id < before
        return await self._line.listed("/v1/tokens", decode.token, limit=limit, beyond=beyond)

    async def revoke(self, who: Principal, token_id: str) -> Token:
        return decode.token((await self._line.post(_path("tokens", token_id, "revoke"), {})).body)


class RemoteWebhooks:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def subscribe(self, who: Principal, request: SubscriptionRequest) -> Created:
        body = msgspec.structs.asdict(request)
        answer = await self._line.post("/v1/subscriptions", body, repeatable=request.key is not None)
        secret: str | None = read(decode.members(answer.body)["secret"], str | None)  # type: ignore[arg-type]
        return Created(decode.subscription(answer.body), secret, answer.status == 200)

    async def subscriptions(
        self, who: Principal, *, before: str | None = None, limit: int = 50
    ) -> list[Subscription]:  # fmt: skip
        beyond = None if before is None else lambda one: one.id < before
        return await self._line.listed("/v1/subscriptions", decode.subscription, limit=limit, beyond=beyond)

    async def subscription(self, who: Principal, id: str) -> Subscription:
        return decode.subscription((await self._line.get(_path("subscriptions", id))).body)

    async def unsubscribe(self, who: Principal, id: str) -> None:
        await self._line.delete(_path("subscriptions", id))

    async def renew(self, who: Principal, id: str, *, expires_in_seconds: float | None = None) -> Subscription:
        body = {"expires_in_seconds": expires_in_seconds}
        return decode.subscription((await self._line.post(_path("subscriptions", id, "renew"), body)).body)

    async def rotate(self, who: Principal, id: str) -> str:
        answer = await self._line.post(_path("subscriptions", id, "rotate"), {}, repeatable=False)
        return read(decode.members(answer.body)["secret"], str)

    async def deliveries(self, who: Principal, filter: DeliveryFilter) -> list[Delivery]:
        """A server lists what was sent to one subscription; for all of them their lists are put together."""
        ids = [filter.subscription_id] if filter.subscription_id is not None else await self._all_subscriptions(who)
        found = [one for id in ids for one in await self._deliveries(id, filter)]
        return sorted(found, key=lambda one: one.id, reverse=True)[: filter.limit]

    async def redeliver(self, who: Principal, delivery_id: str) -> Delivery:
        for id in await self._all_subscriptions(who):
            everything = DeliveryFilter(id, None, None, None, ALL)
            if any(one.id == delivery_id for one in await self._deliveries(id, everything)):
                path = _path("subscriptions", id, "deliveries", delivery_id, "redeliver")
                return decode.delivery((await self._line.post(path, {})).body)
        raise NotFound(delivery_id, resource="delivery")

    async def _all_subscriptions(self, who: Principal) -> Sequence[str]:
        subscriptions = self._line.listed("/v1/subscriptions", decode.subscription, limit=ALL)
        return [one.id for one in await subscriptions]

    async def _deliveries(self, id: str, filter: DeliveryFilter) -> list[Delivery]:
        query = [] if filter.status is None else [("status", str(filter.status))]

        def fits(one: Delivery) -> bool:
            is_older = filter.before is None or one.id < filter.before
            return is_older and filter.job_id in (None, one.job_id)

        path = _path("subscriptions", id, "deliveries")
        return await self._line.listed(path, decode.delivery, limit=filter.limit, query=query, beyond=fits)


class RemoteArtifacts:
    def __init__(self, line: ServerConnection) -> None:
        self._line = line

    async def list(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None = None, limit: int = 50
    ) -> list[Artifact]:  # fmt: skip
        beyond = None if before is None else lambda one: (one.created_at, one.id) < before
        path = _path("jobs", wire.job_id(job_id), "artifacts")
        return await self._line.listed(path, decode.artifact, limit=limit, beyond=beyond, job_id=job_id)

    async def get(self, tenant: str, job_id: str, artifact_id: str) -> Artifact:
        path = _path("jobs", wire.job_id(job_id), "artifacts")
        everything = await self._line.listed(path, decode.artifact, limit=ALL)
        for one in everything:
            if one.id == artifact_id:
                return one
        raise NotFound(artifact_id, resource="artifact")

    async def read(self, tenant: str, job_id: str, artifact_id: str) -> Download:
        found = await self.get(tenant, job_id, artifact_id)
        if found.sha256 is None:
            raise Invalid(f"{found.name} is a link, not a file: {found.url}", pointer="/artifact")
        return Download(found, 0, found.size or 0, Stream(None, self._bytes(found)))

    async def _bytes(self, found: Artifact) -> AsyncGenerator[bytes]:
        answer = await self._line.get(_path("jobs", found.job_id, "artifacts", found.id))
        if hashlib.sha256(answer.body).digest() != found.sha256:
            raise ArtifactLost(found.id, "its bytes do not have its hash")
        yield answer.body


def _checked_json(given: bytes) -> bytes:
    """Return JSON to embed in a body, after checking it: invalid text could change the rest of the body."""
    try:
        json_text.loads(given)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"this is not JSON: {error}") from None
    return given
