"""Webhook messages: what a delivery contains, and the outcome of a reply, in the format of its receiver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import random
from typing import NamedTuple, Protocol

from interlock import wire
from interlock.domain import webhook
from interlock.domain.artifact import Artifact
from interlock.domain.job import Job
from interlock.domain.registry import QueueStats
from interlock.domain.webhook import Dispatch, Outcome, WebhookResponse
from interlock.domain.webhook_format import format_of
from interlock.storage.contract import Store


class Message(NamedTuple):
    """One delivery as it is sent."""

    headers: dict[str, str]
    content: bytes
    outcome: Callable[[WebhookResponse], Outcome]


class Reads(Protocol):
    """What a format may read from the store."""

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]: ...
    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]: ...
    async def artifacts(
        self, tenant: str, job_id: str, *, before: tuple[int, str] | None, limit: int
    ) -> list[Artifact]: ...


class WebhookFormat(Protocol):
    """A format of webhooks other than ours."""

    async def message(self, store: Reads, tenant: str, dispatch: Dispatch, now: float) -> Message:
        """The message for a delivery that is sent now, in seconds since 1970."""
        ...


class Messages:
    """Builds the messages of deliveries; a format that is not installed is replaced by ours."""

    def __init__(self, store: Store, formats: Mapping[str, WebhookFormat]) -> None:
        self._store = store
        self._formats = formats

    async def of(self, tenant: str, dispatch: Dispatch, now: float) -> Message:
        """The message for a delivery that is sent now, in seconds since 1970."""
        if (other := self._formats.get(format_of(dispatch.url)[0])) is not None:
            return await other.message(self._store, tenant, dispatch, now)
        content = webhook.body(dispatch, wire.when(dispatch.at))
        headers = webhook.headers(dispatch.secrets, dispatch.id, int(now), content)
        return Message(headers, content, lambda reply: webhook.outcome(dispatch.attempts, reply, random()))
