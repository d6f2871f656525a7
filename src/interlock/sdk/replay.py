"""What earlier runs of a job have left, met again in the same order by the run that goes on."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from interlock.domain.approval import Approval
from interlock.domain.progress import StepRow
from interlock.sdk.raises import StepMismatch

APPROVAL: Final = "interlock.approve"  # the name under which the answers of people are kept among the steps


class Answer(msgspec.Struct, frozen=True):
    """What people decided, and what they said and sent with it."""

    gate_id: str
    approved: bool
    comment: str | None = None
    data: Any = None
    digest: str | None = None

    @property
    def denied(self) -> bool:
        return not self.approved


class Memory:
    """The kept steps of a job by name and occurrence."""

    def __init__(self, job_id: str, steps: Sequence[StepRow]) -> None:
        self._job_id = job_id
        self._kept = {(step.name, step.occurrence): step for step in steps}
        self._met: Counter[str] = Counter()

    def meet(self, name: str, identity: str) -> tuple[int, StepRow | None]:
        """The number of this meeting with a name, and what is kept of it; something else in its place is an error."""
        self._met[name] += 1
        occurrence = self._met[name]
        step = self._kept.get((name, occurrence))
        if step is not None:
            self.compare(name, step.function, identity)
        return occurrence, step

    @property
    def was_met(self) -> bool:
        """Whether the run has done anything that a later run will not do again."""
        return bool(self._met)

    def compare(self, name: str, recorded: str | None, identity: str) -> None:
        if recorded is not None and recorded != identity:
            raise StepMismatch(self._job_id, name, recorded, identity)

    def is_spent(self, approval: Approval) -> bool:
        """Whether an earlier run has taken this decision already."""
        taken = (step.result for (name, _), step in self._kept.items() if name == APPROVAL)
        return any(msgspec.json.decode(result, type=Answer).gate_id == approval.id for result in taken)


def identity_of(function: Callable[..., Any]) -> str:
    """The name by which a function is recognised in a later run, perhaps of newer code."""
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


def question(payload: str | None, prompt: str, details: str | None, schema: str | None) -> str:
    """What exactly people are asked, and of which call, as a short text that two runs can compare."""
    parts = (part or "" for part in (payload, prompt, details, schema))
    return "question " + hashlib.sha256(b"".join(f"{len(p)}:{p}".encode(errors="replace") for p in parts)).hexdigest()
