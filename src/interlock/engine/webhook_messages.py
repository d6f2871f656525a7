"""Webhook messages: the content of a delivery and the outcome of a response, in the receiver's format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import random
from typing import NamedTuple, Protocol

from interlock import wire
from interlock.domain import webhook
from interlock.domain.job import Job
from interlock.domain.webhook import Dispatch, Outcome, WebhookResponse
from interlock.domain.webhook_format import STANDARD, format_of
from interlock.storage.contract import Store
from interlock.storage.contract.artifacts import ArtifactStore
from interlock.storage.contract.registry import RegistryStore


class Message(NamedTuple):
    """One delivery as it is sent."""

    headers: dict[str, str]
    content: bytes
    outcome: Callable[[WebhookResponse], Outcome]


class Reads(Protocol):
    """The store methods that a format may use."""

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]: ...

    @property
    def registry(self) -> RegistryStore: ...

    @property
    def artifacts(self) -> ArtifactStore: ...


class WebhookFormat(Protocol):
    """A webhook format other than the standard one."""

    async def message(self, store: Reads, tenant: str, dispatch: Dispatch, now: float) -> Message:
        """Build the message for a delivery sent now, in seconds since 1970."""
        ...


FindFormat = Callable[[str], WebhookFormat | None]


def no_format(name: str) -> None:
    """Find no format besides the standard one."""


class Messages:
    """Message builder; falls back to the standard format if a format is not installed."""

    def __init__(self, store: Store, formats: FindFormat) -> None:
        self._store = store
        self._formats = formats

    async def of(self, tenant: str, dispatch: Dispatch, now: float) -> Message:
        """Build the message for a delivery sent now, in seconds since 1970."""
        named = format_of(dispatch.url)[0]
        if named != STANDARD and (other := self._formats(named)) is not None:
            return await other.message(self._store, tenant, dispatch, now)
        content = webhook.body(dispatch, wire.when(dispatch.at))
        headers = webhook.headers(dispatch.secrets, dispatch.id, int(now), content)
        return Message(headers, content, lambda reply: webhook.outcome(dispatch.attempts, reply, random()))
