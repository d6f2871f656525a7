"""Options of the service; the command line creates them from the settings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from interlock.domain.principal import DEFAULT_TENANT

if TYPE_CHECKING:
    from interlock.api.adapters import Adapter

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the service; sizes in bytes, times in seconds."""

    auth: bool = False
    tenant: str = DEFAULT_TENANT  # of every caller while authentication is off
    hosts: Sequence[str] = ()  # allowed host names; with authentication off only loopback names
    faces: Sequence[Adapter] = ()  # the protocol adapters to serve
    cursor_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    largest_body: int = 1024 * 1024
    largest_head: int = 32 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    slowest_upload: int = 32 * 1024  # minimum average bytes per second of an upload
    stalled_seconds: float = 30.0  # a client that reads nothing for this long is disconnected
    idle_seconds: float = 75.0
    keep_alive_seconds: float = 15.0  # interval of keep-alive comments on a stream

    most_connections: int = 10_000
    most_active: int = 512  # requests in progress
    most_waiting: int = 8_000  # long polls and streams
    most_arriving: int = 4_000  # requests whose body is being received
    tenant_share: float = 0.5  # share of these limits and of the budget for one tenant, if there are several
    strangers_share: float = 0.125  # for all callers without a credential together
    body_budget: int = 256 * 1024 * 1024  # all bodies being read or processed

    rate_per_second: float | None = None  # per principal
    rate_burst: int = 100
    grace_seconds: float = 30.0  # for requests in progress at shutdown
