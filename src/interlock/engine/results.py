"""Conversion of item results into values or exceptions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from interlock.domain.job import Rejected
from interlock.errors import Error

T = TypeVar("T")
A = TypeVar("A")


def answered(answer: T | Rejected) -> T:
    """Return the result; raise it if it is a rejection."""
    if isinstance(answer, Rejected):
        raise answer.error
    return answer


async def each(
    items: Sequence[T], check: Callable[[T], T], verb: Callable[[Sequence[T]], Awaitable[Sequence[A | Rejected]]]
) -> list[A | Rejected]:
    """Call the operation with all items that pass the check; an item that fails is rejected alone, in its position."""
    good: list[T] = []
    refused: dict[int, Rejected] = {}
    for i, item in enumerate(items):
        try:
            good.append(check(item))
        except Error as error:
            refused[i] = Rejected(error)
    results = await verb(good) if good else ()
    if not refused:
        return list(results)
    answers = iter(results)
    return [refused[i] if i in refused else next(answers) for i in range(len(items))]
