"""Limits in JSON: the request, and the response body."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from interlock.domain.limits import BucketState, Limit, LimitState
from interlock.wire import responses
from interlock.wire.encode import serializer


class Rate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Amounts of units per period. The burst is the largest amount at one time; by default that of one period."""

    units: dict[str, float]
    per_seconds: float = 60.0
    burst: dict[str, float] | None = None


class LimitRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A limit: concurrency, a rate, or both; with `keyed`, for each key that jobs name.

    With `fair`, the keys are served in turn, by their `weights`; 1 for a key without one.
    """

    concurrency: int | None = None
    rate: Rate | None = None
    keyed: bool = False
    fair: bool = False
    weights: dict[str, float] | None = None


class BucketShape(responses.Shape, frozen=True, kw_only=True):
    """The state of one key of a limit."""

    key: str
    used: int
    available: dict[str, float]
    waiting: int
    held_until: datetime | None
    held_by: str | None
    hold_reason: str | None


class LimitShape(responses.Shape, frozen=True, kw_only=True):
    """A limit and its state. With keys, `used` and `waiting` are sums over all keys, and `available` is empty."""

    name: str
    concurrency: int | None
    rate: Rate | None
    keyed: bool
    fair: bool
    weights: dict[str, float]
    used: int
    available: dict[str, float]
    waiting: int
    held_until: datetime | None
    held_by: str | None
    hold_reason: str | None
    created_at: datetime
    updated_at: datetime


def limit_from(name: str, request: LimitRequest) -> Limit:
    """Return the limit that a request describes, not validated."""
    keys: dict[str, Any] = {"keyed": request.keyed, "fair": request.fair, "weights": request.weights or {}}
    if request.rate is None:
        return Limit(name, request.concurrency, **keys)
    rate = request.rate
    return Limit(name, request.concurrency, rate.units, rate.per_seconds, rate.burst or {}, **keys)


bucket_to_dict: Final = serializer(BucketState)
_limit: Final = serializer(Limit, without=["units", "per_seconds", "burst", "budget"])


def limit_to_dict(found: LimitState) -> dict[str, Any]:
    """Serialize a limit with its state."""
    limit, state = found.limit, bucket_to_dict(found.state)
    del state["key"]
    rate = {"units": dict(limit.units), "per_seconds": limit.per_seconds, "burst": dict(limit.burst)}
    return _limit(limit) | state | {"rate": rate if limit.units else None}
