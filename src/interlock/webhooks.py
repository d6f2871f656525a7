"""Webhooks that this program receives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime

from interlock.domain import webhook

__all__ = ["verify"]


def verify(secret: str, headers: Mapping[str, str], body: bytes, *, now: datetime | None = None) -> bool:
    """Return whether a received webhook is authentic and at most five minutes old, in constant time.

    `body` are the bytes as received, before any decoding; `secret` is that of the subscription.
    """
    return webhook.verify(secret, headers, body, now_seconds=time.time() if now is None else now.timestamp())
