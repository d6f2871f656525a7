"""Notification channels in JSON: the request, and the response body."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from interlock.domain.channel import (
    DEFAULT_EVENTS,
    DEFAULT_INTERVAL_SECONDS,
    Address,
    NotificationChannel,
)
from interlock.wire import invalid, responses
from interlock.wire.encode import serializer


class ChannelRequest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    rename={"sender": "from", "recipients": "to"},
):
    """A channel: `url` for slack, teams and webhook, the members from `host` on for email."""

    kind: str
    events: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_EVENTS))
    types: list[str] | None = None
    tags: list[str] | None = None
    min_risk: str | None = None
    min_interval_seconds: float = DEFAULT_INTERVAL_SECONDS
    url: str | None = None
    secret: str | None = None
    host: str | None = None
    port: int | None = None
    tls: str | None = None
    username: str | None = None
    password: str | None = None
    sender: str | None = None
    recipients: list[str] = []

    def __repr__(self) -> str:
        return f"ChannelRequest(kind={self.kind!r})"  # without secrets


def channel_request(values: Mapping[str, Any]) -> ChannelRequest:
    """Build a request from Python values."""
    try:
        return msgspec.convert(dict(values), ChannelRequest)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


class ChannelShape(
    responses.Shape, frozen=True, kw_only=True, rename={"sender": "from", "recipients": "to"}
):  # fmt: skip
    """A channel without its secrets: of a URL only the host."""

    name: str
    kind: str
    events: list[str]
    types: list[str] | None
    tags: list[str] | None
    min_risk: str | None
    min_interval_seconds: float
    host: str
    port: int | None
    tls: str | None
    username: str | None
    sender: str | None
    recipients: list[str]
    consecutive_failures: int
    disabled_at: datetime | None
    created_at: datetime
    created_by: str
    updated_at: datetime


class ChannelTestShape(responses.Shape, frozen=True, kw_only=True):
    """The result of a test message; `status_code` is of HTTP or SMTP."""

    delivered: bool
    status_code: int | None
    error: str | None


_address: Final = serializer(Address)
_channel: Final = serializer(NotificationChannel, without=["address", "failures"])


def channel_to_dict(found: NotificationChannel) -> dict[str, Any]:
    """Serialize a channel."""
    return _channel(found) | _address(found.address) | {"consecutive_failures": found.failures}
