"""What a job has used up: kept among its steps by runs that brought no result, so that nothing spent is forgotten."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from interlock.domain.progress import StepRow

USAGE: Final = "interlock.usage"  # the name under which runs keep it


def kept_by(job_id: str, *, is_told_again: bool) -> str:
    """Whose usage a step holds: a redriven job has steps of another, and what was told beside steps is told again."""
    return f"{'retold' if is_told_again else 'run'} {job_id}"


def summed(job_id: str, steps: Iterable[StepRow], *, has_ended: bool) -> dict[str, float]:
    """What the runs of a job have used up; of what every run tells again the last telling, if no run follows."""
    counted: list[str] = []
    last: str | None = None
    for step in steps:
        if step.name == USAGE and step.function == kept_by(job_id, is_told_again=False):
            counted.append(step.result)
        elif step.name == USAGE and step.function == kept_by(job_id, is_told_again=True):
            last = step.result
    if last is not None and has_ended:
        counted.append(last)
    return together(map(_amounts, counted))


def together(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Amounts of the same name as one."""
    sums: defaultdict[str, float] = defaultdict(int)
    for some in amounts:
        for name, amount in some.items():
            sums[name] += amount
    return dict(sums)


def _amounts(text: str) -> dict[str, float]:
    """What can be summed of a JSON text: any worker may keep a step of this name."""
    found = json.loads(text)
    named = found.items() if isinstance(found, dict) else ()
    return {name: amount for name, amount in named if type(amount) in (int, float)}
