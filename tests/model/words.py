"""What workers say, made of what they remember of a grant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from hypothesis import strategies as st

from interlock.domain.decide import CancelAck, Complete, Fail, Release
from interlock.domain.job import Beat, Checkpoint

T = TypeVar("T")


class Held(NamedTuple):
    """What a worker remembers of a grant."""

    id: str
    fence: int
    worker: str


def complete(held: Held, result: str | None, summary: str | None, usage: str | None, odd: bool) -> Complete:
    return Complete(held.id, held.fence, held.worker, result, summary, usage, odd and result is not None)


def fail(held: Held, error: str, retryable: bool, after: float | None, odd: bool) -> Fail:
    return Fail(held.id, held.fence, held.worker, error, retryable, after, odd)


def release(held: Held, reason: str | None, delay: float | None, at: int | None, children: list[str]) -> Release:
    run_at = at if delay is None else None
    return Release(held.id, held.fence, held.worker, reason, run_at, delay, tuple(children))


def cancel_ack(held: Held) -> CancelAck:
    return CancelAck(held.id, held.fence, held.worker)


def checkpoint(held: Held, seq: int, data: str, odd: bool) -> Checkpoint:
    return Checkpoint(held.id, held.fence, held.worker, seq, data, odd)


def beat(held: Held, seconds: float | None) -> Beat:
    return Beat(held.id, held.fence, held.worker, seconds)


def beat_with(saved: Checkpoint, seconds: float | None) -> Beat:
    return Beat(saved.id, saved.fence, saved.worker, seconds, saved)


def optional(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from((None, *values))


def built(kind: Callable[..., T], fields: dict[str, st.SearchStrategy[Any]], **fixed: Any) -> st.SearchStrategy[T]:
    """Like st.builds, which would also make up the fields that are left out."""
    return st.fixed_dictionaries(fields).map(lambda drawn: kind(**fixed, **drawn))


def subset(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(values), unique=True).map(lambda chosen: tuple(sorted(chosen)))
