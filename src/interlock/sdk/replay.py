"""Saved steps and decisions of earlier runs, identified by name and occurrence only."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.domain.approval import Approval, ApprovalKind, ApprovalStatus
from interlock.domain.effect import INTENT, RECORDED
from interlock.domain.json_text import NAME_RULE, is_visible_name
from interlock.domain.progress import StepRow
from interlock.sdk import serialization
from interlock.sdk.exceptions import StepMismatch

OWN: Final = "interlock."  # prefix of names that the SDK records itself
APPROVAL: Final = "interlock.approve"  # recorded as the function of a decision, and as the name of one without a name
QUESTION: Final = "interlock.ask"  # likewise for the answer to a question
SLEEP: Final = "interlock.sleep"  # likewise for a sleep
RECEIVE: Final = "interlock.receive"  # recorded as the function of a received message, or of a timeout
EFFECT: Final = RECORDED  # recorded as the function of the intent and of the outcome of an effect
WAIT: Final = "interlock.wait/"  # prefix of the recorded start of a wait with a time limit
STEP: Final = ""  # any other function
PATCHED: Final = "interlock.patched/"


_RECORDED: Final = {ApprovalKind.APPROVAL: APPROVAL, ApprovalKind.QUESTION: QUESTION}
_WORDS: Final = {
    STEP: "a step",
    APPROVAL: "an approval",
    QUESTION: "a question",
    SLEEP: "a sleep",
    RECEIVE: "a message",
    EFFECT: "an effect",
}


class ApprovalResult(msgspec.Struct, frozen=True):
    """The decision about an approval, with comment and data."""

    approval_id: str
    approved: bool
    comment: str | None = None
    data: Any = None
    digest: str | None = None

    @property
    def denied(self) -> bool:
        """Whether the request was denied, or the question declined."""
        return not self.approved


def decision_of(approval: Approval) -> ApprovalResult:
    """Return the decision about an approval as tasks get it."""
    approved, data = approval.status is ApprovalStatus.APPROVED, serialization.decode(approval.data)
    return ApprovalResult(approval.id, approved, approval.comment, data, approval.digest)


class StepReplay:
    """The recorded steps and decisions of a job by name and occurrence."""

    def __init__(self, job_id: str, steps: Sequence[StepRow], approvals: Iterable[Approval] = ()) -> None:
        self._job_id = job_id
        self._steps = {(step.name, step.occurrence): step for step in steps}
        self._decided = {(one.name or _RECORDED[one.kind], one.occurrence): one for one in approvals}
        self._met: Counter[str] = Counter()

    @property
    def was_met(self) -> bool:
        """Return whether the run has recorded anything that a later run replays."""
        return bool(self._met)

    def next(self, name: str) -> int:
        """Return the next occurrence of this name in the run, from 1."""
        self._met[name] += 1
        return self._met[name]

    def occurrence(self, name: str) -> int:
        """Return the last occurrence of this name in the run."""
        return self._met[name]

    def step(self, name: str, occurrence: int, asked: str = STEP) -> StepRow | None:
        """Return the recorded step, or the recorded start of a sleep; another kind of record is a mismatch."""
        self._check_kind(name, occurrence, asked)
        return self._steps.get((name, occurrence))

    def names(self, prefix: str) -> list[str]:
        """Return the names of recorded steps that begin with `prefix`, in the order in which they were saved."""
        found = [step for (name, _), step in self._steps.items() if name.startswith(prefix)]
        return list(dict.fromkeys(step.name for step in sorted(found, key=lambda step: step.seq)))

    def received(self) -> set[int]:
        """Return the numbers of the messages that earlier runs have received."""
        steps = [step for step in self._steps.values() if step.function == RECEIVE and not step.name.startswith(WAIT)]
        return {seq for step in steps if (seq := serialization.decode(step.result, int | None)) is not None}

    def decision(self, name: str, occurrence: int, asked: str) -> tuple[ApprovalResult | None, bool]:
        """Return the recorded decision and whether it is already a step; another kind of record is a mismatch."""
        self._check_kind(name, occurrence, asked)
        step = self._steps.get((name, occurrence))
        if step is not None:
            return serialization.decode(step.result, ApprovalResult), True
        decided = self._decided.get((name, occurrence))
        return None if decided is None else decision_of(decided), False

    def check(self, step: StepRow, asked: str) -> None:
        """Check a record that was just saved: the first write of a name and occurrence wins."""
        self._compare(step.name, step.occurrence, step.function, asked)

    def _check_kind(self, name: str, occurrence: int, asked: str) -> None:
        step, decided = self._steps.get((name, occurrence)), self._decided.get((name, occurrence))
        if step is None:
            step = self._steps.get((INTENT + name, occurrence))
        if step is not None:
            self._compare(name, occurrence, step.function, asked)
        elif decided is not None:
            self._compare(name, occurrence, _RECORDED[decided.kind], asked)

    def _compare(self, name: str, occurrence: int, function: str | None, asked: str) -> None:
        recorded = function if function in _WORDS else STEP
        if recorded != asked:
            raise StepMismatch(self._job_id, name, occurrence, _WORDS[recorded or STEP], _WORDS[asked])

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
