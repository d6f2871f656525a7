"""Which exceptions of a task fail the job permanently, and which are retried."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from interlock.errors import Unavailable

Classes = type[Exception] | Iterable[type[Exception]]


class FailurePolicy(NamedTuple):
    """The options `retry_on` and `fail_on` of a task; `retry_on` is None if it is not set."""

    retry_on: tuple[type[Exception], ...] | None
    fail_on: tuple[type[Exception], ...]

    @classmethod
    def of(cls, retry_on: Classes | None, fail_on: Classes | None) -> FailurePolicy:
        """Return the policy of a task; reject values that are not exception types."""
        retried, failed = _classes("retry_on", retry_on), _classes("fail_on", fail_on) or ()
        if both := [one.__name__ for one in failed if one in (retried or ())]:
            raise ValueError(f"retry_on and fail_on both contain {', '.join(both)}: expected each in one of them")
        return cls(retried, failed)

    def is_permanent(self, error: BaseException) -> bool:
        """Return whether an exception fails the job, regardless of attempts left; a group does if one member does."""
        if isinstance(error, self.fail_on):
            return True
        if self.retry_on is not None and isinstance(error, self.retry_on):
            return False
        if isinstance(error, BaseExceptionGroup):
            return any(self.is_permanent(one) for one in error.exceptions)
        # A queue that is unavailable says nothing about the task.
        return self.retry_on is not None and not isinstance(error, Unavailable)


EVERYTHING_RETRIED: Final = FailurePolicy(None, ())


def _classes(option: str, given: Any) -> tuple[type[Exception], ...] | None:
    """Return exception types as a tuple; one type alone is accepted too."""
    if given is None:
        return None
    classes = (given,) if isinstance(given, type) or not isinstance(given, Iterable) else tuple(given)
    for one in classes:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise TypeError(f"{option} contains {one!r}: expected types of exceptions")
    return classes
