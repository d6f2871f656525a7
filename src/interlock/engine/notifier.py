"""Sending the messages of notification channels, by the rules of webhooks for destinations."""

from __future__ import annotations

import json

from interlock import wire
from interlock.domain import channel, webhook
from interlock.domain.channel import Kind, Notice, Target
from interlock.domain.webhook import Dispatch, WebhookResponse
from interlock.engine.mail import Mailer
from interlock.engine.outbound_http import OutboundClient, Unreachable
from interlock.storage.contract import Store


class Notifier:
    """Sends one message to one channel; the outbox retries it."""

    def __init__(self, store: Store, outside: OutboundClient, public_url: str | None = None) -> None:
        self._channels = store.channels
        self._approvals = store.approvals
        self._outside = outside
        self._mailer = Mailer()
        self._public_url = public_url

    async def deliver(self, tenant: str, dispatch: Dispatch, now: float) -> WebhookResponse:
        """Send a delivery of the outbox to its channel, as it is set now."""
        target = await self._channels.target(tenant, dispatch.url.removeprefix(channel.URL_PREFIX))
        if target is None:
            return WebhookResponse(error="no_subscriber")
        risk = None
        if dispatch.approval_id is not None:
            (approval,) = await self._approvals.get(tenant, [dispatch.approval_id])
            risk = None if approval is None else approval.risk
        content = channel.notice(dispatch, wire.when(dispatch.at), self._public_url, risk)
        return await self._send(tenant, target, content, now)

    async def test(self, tenant: str, name: str, target: Target, now: float) -> WebhookResponse:
        """Send a test message immediately."""
        content = channel.test_notice(wire.new_id(), name, wire.when(round(now * 1_000_000)), self._public_url)
        return await self._send(tenant, target, content, now)

    async def close(self) -> None:
        self._mailer.close()

    async def _send(self, tenant: str, target: Target, content: Notice, now: float) -> WebhookResponse:
        if target.kind is Kind.EMAIL:
            return await self._mail(tenant, target, content)
        body = json.dumps(channel.FORMATS[target.kind](content), separators=(",", ":")).encode()
        headers = {"content-type": "application/json"}
        if target.credentials.secret is not None:
            headers = webhook.headers([target.credentials.secret], content.id, int(now), body)
        return await self._outside.post(target.credentials.url or "", headers, body, owner=tenant)

    async def _mail(self, tenant: str, target: Target, content: Notice) -> WebhookResponse:
        address = target.address
        try:
            servers = await self._outside.mail_servers(address.host, address.port or 0, owner=tenant)
        except Unreachable as error:
            return WebhookResponse(error=str(error))
        if not servers:
            return WebhookResponse(error="cannot_resolve")
        return await self._mailer.send(
            servers[0], address, target.credentials.password, content, self._outside.tls
        )  # fmt: skip
