"""Saved steps and decisions of earlier runs, identified by name and occurrence only."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.domain.approval import Approval, ApprovalStatus
from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.domain.progress import StepRow
from interlock.sdk import serialization
from interlock.sdk.exceptions import StepMismatch

OWN: Final = "interlock."  # prefix of names that the SDK records itself
APPROVAL: Final = "interlock.approve"  # recorded as the function of a decision, and as the name of one without a name
PATCHED: Final = "interlock.patched/"


class ApprovalResult(msgspec.Struct, frozen=True):
    """The decision about an approval, with comment and data."""

    approval_id: str
    approved: bool
    comment: str | None = None
    data: Any = None
    digest: str | None = None

    @property
    def denied(self) -> bool:
        return not self.approved

    @classmethod
    def of(cls, approval: Approval) -> ApprovalResult:
        approved, data = approval.status is ApprovalStatus.APPROVED, serialization.decode(approval.data)
        return cls(approval.id, approved, approval.comment, data, approval.digest)


class StepReplay:
    """The recorded steps and decisions of a job by name and occurrence."""

    def __init__(self, job_id: str, steps: Sequence[StepRow], approvals: Iterable[Approval] = ()) -> None:
        self._job_id = job_id
        self._steps = {(step.name, step.occurrence): step for step in steps}
        self._decided = {(one.name or APPROVAL, one.occurrence): one for one in approvals}
        self._met: Counter[str] = Counter()

    @property
    def was_met(self) -> bool:
        """Return whether the run has recorded anything that a later run replays."""
        return bool(self._met)

    def next(self, name: str) -> int:
        """Return the next occurrence of this name in the run, from 1."""
        self._met[name] += 1
        return self._met[name]

    def step(self, name: str, occurrence: int) -> StepRow | None:
        """Return the recorded step; a decision in its place is a mismatch."""
        found = self._steps.get((name, occurrence))
        if (name, occurrence) in self._decided or (found is not None and found.function == APPROVAL):
            raise StepMismatch(self._job_id, name, occurrence, "an approval", "a step")
        return found

    def decision(self, name: str, occurrence: int) -> tuple[ApprovalResult | None, bool]:
        """Return the recorded decision and whether it is already a step; a step in its place is a mismatch."""
        step = self._steps.get((name, occurrence))
        if step is not None:
            self.check_decision(step)
            return serialization.decode(step.result, ApprovalResult), True
        decided = self._decided.get((name, occurrence))
        return None if decided is None else ApprovalResult.of(decided), False

    def check_decision(self, step: StepRow) -> None:
        if step.function != APPROVAL:
            raise StepMismatch(self._job_id, step.name, step.occurrence, "a step", "an approval")

    def patch(self, name: str) -> bool | None:
        """Return what an earlier run recorded about a patch."""
        found = self._steps.get((PATCHED + name, 1))
        return None if found is None else bool(serialization.decode(found.result))


def is_recordable(name: str) -> bool:
    return is_visible_name(name) and not name.startswith(OWN)


def check_name(name: object, what: str) -> str:
    """Return a valid name for a record; raise ValueError otherwise."""
    if not isinstance(name, str):
        raise TypeError(f"the name of {what} is {name!r}: expected text")
    if name.startswith(OWN):
        raise ValueError(
            f"the name of {what} is {name!r}: names that begin with {OWN!r} are reserved; use another name"
        )
    if not is_visible_name(name):
        raise ValueError(f"the name of {what} is {name!r}: expected {NAME_RULE}")
    return name


def identity_of(function: Callable[..., Any]) -> str:
    """Return the name of a function, stored with its result for readers of the steps."""
    while isinstance(function, functools.partial):
        function = function.func
    module = getattr(function, "__module__", None)
    if module == "__main__":  # a worker will import the same file by its own name
        module = _name_of_main()
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{module}.{name}" if module else name


def _name_of_main() -> str:
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return "__main__" if file is None else Path(file).stem
