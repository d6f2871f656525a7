"""Notification channels."""

from __future__ import annotations

import base64
import re
from typing import Final

from interlock import wire
from interlock.domain import channel, token, webhook_url
from interlock.domain.channel import Address, ChannelTest, Credentials, Kind, NewChannel, NotificationChannel, Tls
from interlock.domain.principal import Principal
from interlock.domain.webhook import SECRET_PREFIX, fault_of
from interlock.engine.notifier import Notifier
from interlock.engine.outbound_http import OutboundClient
from interlock.errors import Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire.channels import ChannelRequest

MAX_PAGE_SIZE: Final = 200
MAX_INTERVAL_SECONDS: Final = 86_400.0
MAX_SECRET_LENGTH: Final = 1000
_MAILBOX: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]+")
_OF_HTTP: Final = ("url", "secret")
_OF_MAIL: Final = ("host", "port", "tls", "username", "password", "sender", "recipients")
_MEMBERS: Final = {"sender": "from", "recipients": "to"}


class Channels:
    """Channels of one tenant, for its administrators."""

    def __init__(self, store: Store, outside: OutboundClient, notifier: Notifier) -> None:
        self._store = store
        self._outside = outside
        self._notifier = notifier

    async def set(self, who: Principal, name: str, request: ChannelRequest) -> NotificationChannel:
        """Create or replace a channel; a disabled one is enabled again."""
        who.need("admin")
        name = wire.name(name, "name")
        if request.kind not in tuple(Kind):
            raise Invalid(f"kind is {request.kind!r}: expected {', '.join(Kind)}", pointer="/kind")
        kind = Kind(request.kind)
        _only(request, kind)
        address, credentials = await (self._mail if kind is Kind.EMAIL else self._http)(who, request, kind)
        interval = wire.seconds(request.min_interval_seconds, "min_interval_seconds", 0, MAX_INTERVAL_SECONDS)
        new = NewChannel(
            name, kind, address, credentials, channel.check_events(request.events), token.types(request.types),
            wire.tags(request.tags) if request.tags else None, channel.check_risk(request.min_risk),
            interval or 0.0, wire.new_id(), who.actor,
        )  # fmt: skip
        return await self._store.channels.set(who.tenant, new)

    async def get(self, who: Principal, name: str) -> NotificationChannel:
        who.need("admin")
        found = await self._store.channels.get(who.tenant, name)
        if found is None:
            raise NotFound(name, resource="channel")
        return found

    async def page(self, who: Principal, *, after: str = "", limit: int = 50) -> list[NotificationChannel]:
        """List channels by name, starting after `after`."""
        who.need("admin")
        wire.whole(limit, "limit", 1, MAX_PAGE_SIZE)
        return await self._store.channels.page(who.tenant, after=after, limit=limit)

    async def delete(self, who: Principal, name: str) -> None:
        """Delete a channel and its pending messages."""
        who.need("admin")
        if not await self._store.channels.delete(who.tenant, name, actor=who.actor):
            raise NotFound(name, resource="channel")

    async def test(self, who: Principal, name: str) -> ChannelTest:
        """Send a test message immediately, once, and return the result."""
        who.need("admin")
        target = await self._store.channels.target(who.tenant, name)
        if target is None:
            raise NotFound(name, resource="channel")
        reply = await self._notifier.test(who.tenant, name, target, await self._store.now() / 1_000_000)
        delivered = reply.status_code is not None and 200 <= reply.status_code < 300
        return ChannelTest(delivered, reply.status_code, fault_of(reply))

    async def _http(self, who: Principal, request: ChannelRequest, kind: Kind) -> tuple[Address, Credentials]:
        if request.url is None:
            raise Invalid(f"url is required for kind {kind}", pointer="/url")
        await self._outside.admit(request.url, owner=who.tenant)
        if request.secret is not None:
            _secret(request.secret)
        return Address(webhook_url.parse(request.url).host), Credentials(request.url, request.secret)

    async def _mail(self, who: Principal, request: ChannelRequest, _kind: Kind) -> tuple[Address, Credentials]:
        if request.host is None or request.sender is None or not request.recipients:
            missing = "host" if request.host is None else "from" if request.sender is None else "to"
            raise Invalid(f"{missing} is required for kind email", pointer=f"/{missing}")
        if request.tls not in (None, *Tls):
            raise Invalid(f"tls is {request.tls!r}: expected {', '.join(Tls)}", pointer="/tls")
        tls = Tls(request.tls or Tls.STARTTLS)
        port = request.port if request.port is not None else webhook_url.MAIL_PORTS[tls]
        if (request.username is None) != (request.password is None):
            raise Invalid("username and password belong together: set both or none", pointer="/username")
        if request.password is not None and tls is Tls.NONE:
            raise Invalid("a password needs an encrypted connection: set tls to starttls or implicit", pointer="/tls")
        for field, value in (("username", request.username), ("password", request.password)):
            if value is not None and not (len(value) <= MAX_SECRET_LENGTH and _PRINTABLE.fullmatch(value)):
                raise Invalid(f"{field} must have 1 to {MAX_SECRET_LENGTH} printable characters", pointer=f"/{field}")
        if len(request.recipients) > channel.MAX_RECIPIENTS:
            raise Invalid(f"to must name at most {channel.MAX_RECIPIENTS} addresses", pointer="/to")
        _mailbox(request.sender, "/from")
        for i, recipient in enumerate(request.recipients):
            _mailbox(recipient, f"/to/{i}")
        await self._outside.admit_mail(request.host, port, owner=who.tenant)
        address = Address(request.host, port, tls, request.username, request.sender, tuple(request.recipients))
        return address, Credentials(password=request.password)


def _only(request: ChannelRequest, kind: Kind) -> None:
    """Reject members of another kind, which would have no effect."""
    for field in _OF_HTTP if kind is Kind.EMAIL else _OF_MAIL:
        if getattr(request, field):
            member = _MEMBERS.get(field, field)
            raise Invalid(f"{member} does not belong to kind {kind}", pointer=f"/{member}")
    if request.secret is not None and kind is not Kind.WEBHOOK:
        raise Invalid(f"secret does not belong to kind {kind}", pointer="/secret")


def _mailbox(text: str, pointer: str) -> None:
    if len(text) > 254 or not _MAILBOX.fullmatch(text):
        raise Invalid(f"{text!r} is not an e-mail address: expected name@example.com", pointer=pointer)


def _secret(text: str) -> None:
    """Reject a secret that cannot sign; the error must not contain it."""
    try:
        key = base64.b64decode(text.removeprefix(SECRET_PREFIX), validate=True)
    except ValueError:
        key = b""
    if not (key and text.startswith(SECRET_PREFIX) and len(text) <= MAX_SECRET_LENGTH):
        raise Invalid(f"secret must be {SECRET_PREFIX} and a key in base64", pointer="/secret")
