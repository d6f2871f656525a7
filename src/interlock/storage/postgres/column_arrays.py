"""The values of many jobs at once, column by column: a function of ours for each would cost more than all else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from struct import unpack
from typing import Any, Final, TypeVar

EPOCH_2000: Final = 946_684_800_000_000  # what PostgreSQL counts microseconds from

N = TypeVar("N", bound=tuple[Any, ...])
T = TypeVar("T")


def maker(kind: type[N]) -> Callable[[Iterable[Any]], N]:
    """Makes a named tuple of the values of all its fields."""
    return partial(tuple.__new__, kind)


def is_empty(values: Sequence[object]) -> bool:
    """Whether all of them are None."""
    return values.count(None) == len(values)


def shared(values: Sequence[T]) -> Sequence[T]:
    """The values, or the first one where all are the same."""
    return values[:1] if values.count(values[0]) == len(values) else values


def some(values: Sequence[T | None]) -> Sequence[T | None] | None:
    """The values, or nothing where there is none."""
    return None if is_empty(values) else values


def filled(values: Sequence[T | None], others: Iterable[T]) -> Iterable[T]:
    """The values, and where there is none the other one."""
    if is_empty(values):
        return others
    return [other if value is None else value for value, other in zip(values, others, strict=False)]


def times(packed: bytes) -> list[int]:
    """Microseconds since 1970, from times as PostgreSQL sends them, one behind the other."""
    return [micros + EPOCH_2000 for micros in unpack(f">{len(packed) // 8}q", packed)]


def array_literal(values: Sequence[str | None]) -> str:
    """Texts as the text of a PostgreSQL array."""
    if None not in values:
        joined = "\0".join(values)  # type: ignore[arg-type]
        if joined.count("\0") < len(values):  # else one of them has what no text may have, and is refused as it is
            return '{"' + _escaped(joined).replace("\0", '","') + '"}'
    return "{" + ",".join("NULL" if value is None else f'"{_escaped(value)}"' for value in values) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
