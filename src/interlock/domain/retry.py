"""Backoff: the delay before the next attempt."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from interlock.errors import Invalid

SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
SHORTEST_DELAY: Final = SECOND // 10
MAX_RETRY_AFTER_SECONDS: Final = 30 * 86_400

KINDS: Final = ("fixed", "linear", "exponential", "full_jitter", "equal_jitter")


class Backoff(NamedTuple):
    """A policy for how the delay before a retry grows with the attempts."""

    kind: str = "full_jitter"
    base_seconds: float = 1.0
    max_seconds: float = 300.0
    multiplier: float = 2.0

    def delay(self, attempt: int, chance: float) -> int:
        """Return the microseconds to wait after this attempt failed; chance is a random number in [0, 1)."""
        if self.kind == "fixed":
            seconds = self.base_seconds
        elif self.kind == "linear":
            seconds = self.base_seconds * attempt
        else:
            try:
                seconds = self.base_seconds * self.multiplier ** (attempt - 1)
            except OverflowError:
                seconds = self.max_seconds
        seconds = min(seconds, self.max_seconds)
        if self.kind == "full_jitter":
            seconds *= chance
        elif self.kind == "equal_jitter":
            seconds *= 0.5 + 0.5 * chance
        return max(round(seconds * SECOND), SHORTEST_DELAY)

    def to_text(self) -> str:
        """Serialize the policy as stored with a job."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> Backoff:
        return cls(**json.loads(text))

    def check(self) -> Backoff:
        """Return the policy itself, or raise Invalid with a pointer to the field."""
        if self.kind not in KINDS:
            raise Invalid(f"backoff kind is {self.kind!r}: expected one of {', '.join(KINDS)}", pointer="/backoff/kind")
        for name, low, high in (("base_seconds", 0, 86_400), ("max_seconds", 0, 30 * 86_400), ("multiplier", 1, 100)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
                raise Invalid(f"backoff {name} must be a number from {low} to {high}", pointer=f"/backoff/{name}")
        return self


DEFAULT_BACKOFF: Final = Backoff()


def after_failure(backoff: Backoff, attempt: int, chance: float, retry_after_seconds: float | None) -> int:
    """Return the microseconds until the next attempt; an explicit retry_after_seconds overrides the backoff policy."""
    if retry_after_seconds is None:
        return backoff.delay(attempt, chance)
    return max(round(retry_after_seconds * SECOND), SHORTEST_DELAY)


def after_expiry(delay_seconds: float | None) -> int:
    """Return the microseconds until the next attempt after a lease expired; 0 unless the job sets a delay."""
    return round((delay_seconds or 0.0) * SECOND)
