"""Effects: calls with consequences outside the database, recorded before the call and after it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from interlock.errors import EffectConflict, LimitReached

MAX_EFFECTS: Final = 10_000  # of one job
RECORDED: Final = "interlock.effect"  # the function of the steps that record an effect
INTENT: Final = f"{RECORDED}/"  # prefix of the step that records the intent; the outcome is a step of the same name


class EffectState(StrEnum):
    """The state of an effect. `started` without a worker means that the outcome is unknown."""

    STARTED = "started"
    DONE = "done"
    NOT_DONE = "not_done"


class BeginEffect(NamedTuple):
    """The intent of a lease holder to call a function; the key makes the call idempotent for the external system."""

    id: str
    fence: int
    worker: str
    name: str
    occurrence: int
    key: str | None = None


class SettleEffect(NamedTuple):
    """The outcome of an effect that was begun: done with a JSON result, or not done."""

    id: str
    fence: int
    worker: str
    name: str
    occurrence: int
    state: EffectState
    result: str | None = None
    sanitized: bool = False


class Effect(NamedTuple):
    """An effect of a job. `attempt` began it; `fence` is that of the lease that wrote it last, 0 if it was copied."""

    seq: int
    name: str
    occurrence: int
    key: str | None
    state: EffectState
    result: str | None
    sanitized: bool
    attempt: int
    fence: int
    started_at: int
    ended_at: int | None


class Begun(NamedTuple):
    """The stored effect, and whether this call began it."""

    effect: Effect
    is_new: bool


def begin(order: BeginEffect, known: Effect | None, last_seq: int, attempt: int, now: int) -> Begun:
    """Return the effect as stored: a known one stays as it is, unless it is known not to have happened."""
    if known is not None and known.state is not EffectState.NOT_DONE:
        return Begun(known, False)
    if known is None and last_seq >= MAX_EFFECTS:
        raise LimitReached(order.id, "effects", MAX_EFFECTS)
    seq = last_seq + 1 if known is None else known.seq
    key = known.key if known is not None and order.key is None else order.key
    begun = Effect(
        seq, order.name, order.occurrence, key, EffectState.STARTED, None, False, attempt, order.fence, now, None
    )  # fmt: skip
    return Begun(begun, True)


def settle(order: SettleEffect, known: Effect, now: int) -> Effect | None:
    """Return the effect with its outcome, or None if it is recorded already. An effect that is done never changes."""
    if (known.state, known.result) == (order.state, order.result):
        return None
    if known.state is not EffectState.STARTED:
        raise EffectConflict(order.id, order.name, order.occurrence, known.state)
    return known._replace(
        state=order.state, result=order.result, sanitized=order.sanitized, fence=order.fence, ended_at=now
    )
