"""What a job has used up: kept among its steps by runs that brought no result, so that nothing spent is forgotten."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from interlock.domain import json_text
from interlock.domain.progress import StepRow
from interlock.errors import Invalid

USAGE: Final = "interlock.usage"  # the name under which runs keep it
LARGEST: Final = 8 * 1024  # bytes of JSON: it stands in every list of jobs
MAX_NAME_LENGTH: Final = 200


def sanitized(given: str) -> tuple[str, bool]:
    """What a worker says its job has used up, fit to be kept, and whether odd text in it was replaced."""
    kept, changed = json_text.sanitize(given, what="usage", limit=LARGEST)
    amounts = json_text.loads(kept)
    if not isinstance(amounts, dict):
        raise Invalid("usage is an object of amounts by name", pointer="/usage")
    for name, amount in amounts.items():
        if not is_name(name):
            raise Invalid(f"usage goes by names of 1 to {MAX_NAME_LENGTH} characters", pointer="/usage")
        if not is_amount(amount):
            raise Invalid(f"usage[{name!r}] must be a number >= 0", pointer="/usage")
    return kept, changed


def is_name(value: str) -> bool:
    """Whether something used up can be called so; a finish is not refused for odd text."""
    return 1 <= len(value) <= MAX_NAME_LENGTH


def is_amount(value: Any) -> bool:
    """Whether something can have been used up, and be summed."""
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


def kept_by(job_id: str, *, is_repeated: bool) -> str:
    """Whose usage a step holds: a redriven job has steps of another, and what was told beside steps is told again."""
    return f"{'retold' if is_repeated else 'run'} {job_id}"


def summed(job_id: str, steps: Iterable[StepRow], *, has_ended: bool) -> dict[str, float]:
    """What the runs of a job have used up; of what every run tells again the last telling, if no run follows."""
    counted: list[str] = []
    last: str | None = None
    for step in steps:
        if step.name == USAGE and step.function == kept_by(job_id, is_repeated=False):
            counted.append(step.result)
        elif step.name == USAGE and step.function == kept_by(job_id, is_repeated=True):
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


def _amounts(kept: str) -> dict[str, float]:
    """What can be summed of a JSON text: any worker may keep a step of this name, with anything in it."""
    found = json_text.loads(kept)
    named = found.items() if isinstance(found, dict) else ()
    return {name: amount for name, amount in named if is_name(name) and is_amount(amount)}
