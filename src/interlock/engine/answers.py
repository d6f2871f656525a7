"""Turning the answer to one item into a value or an exception."""

from __future__ import annotations

from typing import TypeVar

from interlock.domain.job import Refused

T = TypeVar("T")


def answered(answer: T | Refused) -> T:
    """The answer itself; a refusal is raised."""
    if isinstance(answer, Refused):
        raise answer.error
    return answer
