"""Delivery of the outbox, at least once, fair between tenants and channels.

There is no leader: a claimed delivery is due again after its lease, so the deliveries of a crashed sender are retried
by another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import random
from typing import Final, NamedTuple

from interlock.domain import webhook, webhook_url
from interlock.domain.channel import URL_PREFIX
from interlock.domain.webhook import Channel, DeliveryResult, Dispatch, Outcome, WebhookResponse
from interlock.domain.webhook_format import format_of
from interlock.engine.notifier import Notifier
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.webhook_messages import FindFormat, Messages, no_format
from interlock.errors import Error, Fatal, Invalid
from interlock.storage.contract import Store

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.25
LEASE_SECONDS: Final = 30.0  # longer than the request deadline plus the time to record the result
LOOK_AT_CHANNELS: Final = 1000
HOST_IS_BUSY_SECONDS: Final = 1.0
LAST_WORDS_SECONDS: Final = 2.0

# The stages of one delivery; tests stop the sender at each.
STAGES: Final = ("taken", "connected", "sent", "answered", "settled")


class Pace(NamedTuple):
    """Limits on deliveries in flight: in total, per tenant, per host and per channel."""

    total: int = 64
    tenant: int = 16
    host: int = 8
    channel: int = 4


class Sender:
    """Sends due deliveries once or continuously; any number of processes may do so."""

    def __init__(
        self,
        store: Store,
        outside: OutboundClient,
        *,
        pace: Pace | None = None,
        lease_seconds: float = LEASE_SECONDS,
        clock: Callable[[], float] = time.time,
        at: Callable[[str], None] = lambda stage: None,
        formats: FindFormat = no_format,
        notifier: Notifier | None = None,
    ) -> None:
        self._outbox = store.outbox
        self._messages = Messages(store, formats)
        self._outside = outside
        self._notifier = notifier or Notifier(store, outside)
        self._pace = pace or Pace()
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._at = at
        self._loop: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._by_tenant: Counter[str] = Counter()
        self._by_channel: Counter[Channel] = Counter()
        self._by_host: Counter[str] = Counter()
        self._served: dict[str, int] = {}
        self._passes = 0
        self._landed = asyncio.Event()

    def start(self) -> None:
        """Deliver in the background until stopped."""
        if self._loop is None:
            self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop claiming; give deliveries in flight a moment, the rest is due again after its lease."""
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_WORDS_SECONDS)
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def deliver_due(self) -> int:
        """Deliver until nothing is due or in flight; return the number of attempts."""
        tried = 0
        while (taken := await self._send_batch()) or self._under_way:
            tried += taken
            if self._under_way:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        return tried

    async def _run(self) -> None:
        troubled = False
        while True:
            self._landed.clear()
            taken = 0
            try:
                taken = await self._send_batch()
                if troubled:
                    log.info("webhooks are sent again")
                troubled = False
            except Fatal:
                log.critical("webhooks stop: the storage is broken", exc_info=True)
                raise
            except Exception as error:  # any error: this is the only task that sends
                if not troubled:
                    log.warning(
                        "cannot read webhook outbox, retrying: %s",
                        error,
                        exc_info=not isinstance(error, Error),
                    )
                troubled = True
            if not taken:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._landed.wait()

    async def _send_batch(self) -> int:
        """Claim as many deliveries as the limits allow and start them; return the number."""
        if len(self._under_way) >= self._pace.total:
            return 0
        self._passes += 1
        shares = self._share_out(await self._outbox.due_channels(LOOK_AT_CHANNELS))
        taken = 0
        for tenant, wants in shares.items():
            fresh = webhook.secret_of(secrets.token_bytes(webhook.SECRET_BYTES))
            dispatches = await self._outbox.take(tenant, wants, lease_seconds=self._lease_seconds, fresh_secret=fresh)
            self._served[tenant] = self._passes
            for dispatch in dispatches:
                self._set_off(Channel(tenant, dispatch.channel), dispatch)
            taken += len(dispatches)
        return taken

    def _share_out(self, due: Sequence[Channel]) -> dict[str, list[tuple[str, int]]]:
        """Return how many to claim per channel: round-robin, least recently served first."""
        seen: Counter[str] = Counter()
        ranked = []
        for channel in due:
            ranked.append((seen[channel.tenant], self._served.get(channel.tenant, 0), channel))
            seen[channel.tenant] += 1
        self._served = {tenant: last_pass for tenant, last_pass in self._served.items() if tenant in seen}
        room = self._pace.total - len(self._under_way)
        share: Counter[Channel] = Counter()
        of_tenant = Counter({tenant: self._by_tenant[tenant] for tenant in seen})
        for _ in range(self._pace.channel):
            for *_, channel in sorted(ranked, key=lambda rank: rank[:2]):
                busy = self._by_channel[channel] + share[channel]
                if room and busy < self._pace.channel and of_tenant[channel.tenant] < self._pace.tenant:
                    room -= 1
                    share[channel] += 1
                    of_tenant[channel.tenant] += 1
        wants: dict[str, list[tuple[str, int]]] = {}
        for channel, want in share.items():
            wants.setdefault(channel.tenant, []).append((channel.channel, want))
        return wants

    def _set_off(self, channel: Channel, dispatch: Dispatch) -> None:
        self._by_tenant[channel.tenant] += 1
        self._by_channel[channel] += 1
        task = asyncio.create_task(self._deliver(channel.tenant, dispatch))
        self._under_way.add(task)

        def landed(task: asyncio.Task[None]) -> None:
            self._under_way.discard(task)
            self._by_tenant -= Counter({channel.tenant: 1})
            self._by_channel -= Counter({channel: 1})
            self._landed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("delivery %s could not be written down and will be sent again: %s", dispatch.id, error)

        task.add_done_callback(landed)

    async def _deliver(self, tenant: str, dispatch: Dispatch) -> None:
        self._at("taken")
        _, url = format_of(dispatch.url)
        # Channels of several tenants may have one name; their hosts are known only to the notifier.
        host = f"{tenant} {url}" if url.startswith(URL_PREFIX) else _host(url)
        if self._by_host[host] >= self._pace.host:
            await self._outbox.give_back(tenant, dispatch.id, dispatch.grab, HOST_IS_BUSY_SECONDS)
            return
        self._by_host[host] += 1
        try:
            reply, outcome = await self._send(tenant, dispatch, url)
        finally:
            self._by_host -= Counter({host: 1})
        self._at("answered")
        fault = webhook.fault_of(reply)
        await self._outbox.settle(tenant, DeliveryResult(dispatch.id, dispatch.grab, outcome, reply.status_code, fault))
        self._at("settled")

    async def _send(self, tenant: str, dispatch: Dispatch, url: str) -> tuple[WebhookResponse, Outcome]:
        if url.startswith(URL_PREFIX):
            reply = await self._notifier.deliver(tenant, dispatch, self._clock())
            return reply, webhook.outcome(dispatch.attempts, reply, random())
        message = await self._messages.of(tenant, dispatch, self._clock())
        reply = await self._outside.post(url, message.headers, message.content, self._at, owner=tenant)
        return reply, message.outcome(reply)


def _host(url: str) -> str:
    try:
        return webhook_url.parse(url).host
    except Invalid:  # not written by this program; the HTTP client rejects it
        return url
