"""What the service is told from outside; the command line makes it from the settings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from interlock.api.codeq.credentials import Credentials
from interlock.domain.principal import DEFAULT_TENANT

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the service meets the world; sizes are bytes, times seconds."""

    auth: bool = False
    tenant: str = DEFAULT_TENANT  # of every caller while auth is off
    hosts: Sequence[str] = ()  # names the service answers to; with auth off always those of loopback only
    faces: Sequence[str] = ()  # other protocols that are served too, by name
    codeq: Credentials = field(default_factory=Credentials)  # whose credentials count in that face besides our own
    cursor_key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    largest_body: int = 1024 * 1024
    largest_head: int = 32 * 1024
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    slowest_upload: int = 32 * 1024  # bytes a second that an upload must keep up on the whole
    stalled_seconds: float = 30.0  # a reader that takes nothing for so long is cut off
    idle_seconds: float = 75.0
    keep_alive_seconds: float = 15.0  # between two signs of life on a stream

    most_connections: int = 10_000
    most_active: int = 512  # requests at work at one time
    most_waiting: int = 8_000  # long polls and streams
    most_arriving: int = 4_000  # requests whose body is on its way
    tenant_share: float = 0.5  # of these and of the budget, for one tenant, where there are several
    strangers_share: float = 0.125  # for all who need no credential together
    body_budget: int = 256 * 1024 * 1024  # all bodies that are being read or worked on

    rate_per_second: float | None = None  # for each principal
    rate_burst: int = 100
    grace_seconds: float = 30.0  # for requests under way when the service stops
