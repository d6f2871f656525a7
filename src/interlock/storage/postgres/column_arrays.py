"""Values of many jobs, column by column: a Python call per job would cost more than everything else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import unpack
from typing import Final, TypeVar

EPOCH_2000: Final = 946_684_800_000_000  # PostgreSQL counts microseconds from 2000

T = TypeVar("T")


def is_empty(values: Sequence[object]) -> bool:
    """Return whether all values are None."""
    return values.count(None) == len(values)


def shared(values: Sequence[T]) -> Sequence[T]:
    """Return the values, or only the first one if all are equal."""
    return values[:1] if values.count(values[0]) == len(values) else values


def some(values: Sequence[T | None]) -> Sequence[T | None] | None:
    """Return the values, or None if all of them are None."""
    return None if is_empty(values) else values


def filled(values: Sequence[T | None], others: Iterable[T]) -> Iterable[T]:
    """Return the values, with each None replaced by the matching other value."""
    if is_empty(values):
        return others
    return [other if value is None else value for value, other in zip(values, others, strict=False)]


def times(packed: bytes) -> list[int]:
    """Decode packed PostgreSQL timestamps to microseconds since 1970."""
    return [micros + EPOCH_2000 for micros in unpack(f">{len(packed) // 8}q", packed)]


def array_literal(values: Sequence[str | None]) -> str:
    """Return the text form of a PostgreSQL array of strings."""
    if None not in values:
        joined = "\0".join(values)  # type: ignore[arg-type]
        if joined.count("\0") < len(values):  # else a value contains NUL, which PostgreSQL rejects
            return '{"' + _escaped(joined).replace("\0", '","') + '"}'
    return "{" + ",".join("NULL" if value is None else f'"{_escaped(value)}"' for value in values) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
