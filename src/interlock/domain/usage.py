"""Resource usage of a job. A run without a result saves its usage as a step, so that later runs can add it up."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from interlock.domain import json_text
from interlock.domain.progress import StepRow
from interlock.errors import Invalid

USAGE: Final = "interlock.usage"  # the name of the steps that hold it
LARGEST: Final = 8 * 1024  # bytes of JSON: every list of jobs contains it
MAX_NAME_LENGTH: Final = 200


def sanitized(given: str) -> tuple[str, bool]:
    """Validate the usage that a worker reported; return it and whether invalid Unicode in it was replaced."""
    kept, changed = json_text.sanitize(given, what="usage", limit=LARGEST)
    amounts = json_text.loads(kept)
    if not isinstance(amounts, dict):
        raise Invalid("usage must be an object of numbers", pointer="/usage")
    for name, amount in amounts.items():
        if not is_name(name):
            raise Invalid(f"usage has an invalid name: expected 1 to {MAX_NAME_LENGTH} characters", pointer="/usage")
        if not is_amount(amount):
            raise Invalid(f"usage[{name!r}] must be a number >= 0", pointer="/usage")
    return kept, changed


def is_name(value: str) -> bool:
    """Return whether a usage name is valid. Only its length is checked: invalid Unicode must not reject a finish."""
    return 1 <= len(value) <= MAX_NAME_LENGTH


def is_amount(value: Any) -> bool:
    """Return whether a value is a valid amount that can be summed."""
    return type(value) in (int, float) and 0 <= value <= sys.float_info.max


def kept_by(job_id: str, *, is_repeated: bool) -> str:
    """Return the `function` value that marks whose usage a step holds.

    It contains the job ID because a redriven job copies the steps of another job. With `is_repeated`, a replay reports
    the same usage again, so earlier reports must not be added to later ones.
    """
    return f"{'retold' if is_repeated else 'run'} {job_id}"


def summed(job_id: str, steps: Iterable[StepRow], *, has_ended: bool) -> dict[str, float]:
    """Return the total usage of a job's runs.

    Repeated usage counts only in its last report, and only after the job has ended: another run would report it again.
    """
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


def of_run(
    job_id: str, fence: int, steps: Sequence[StepRow], total: str | None, heartbeat: str | None
) -> tuple[dict[str, float], dict[str, float]]:
    """Return what one run used: by its reports during the run, and by all reports at its end.

    `total` is the usage of all runs, which a completed job reports; `heartbeat` is what the run reported last while it
    was running. Earlier runs have been settled, so what they reported is left out.
    """
    kinds = [kept_by(job_id, is_repeated=False), kept_by(job_id, is_repeated=True)]
    told = [step for step in steps if step.name == USAGE]
    before, here = ([s for s in told if s.fence < fence], [s for s in told if s.fence == fence])
    added, repeated = ([_amounts(s.result) for s in before if s.function == kind] for kind in kinds)
    earlier = together(repeated[-1:])
    during = _without({} if heartbeat is None else _amounts(heartbeat), earlier)
    if total is not None:
        return during, _without(_amounts(total), together([*added, earlier]))
    if not here:
        return during, during
    mine, again = ([_amounts(s.result) for s in here if s.function == kind] for kind in kinds)
    return during, _without(together([*mine, *again[-1:]]), earlier)


def _without(amounts: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    return {name: max(amount - others.get(name, 0.0), 0.0) for name, amount in amounts.items()}


def together(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sum amounts by name."""
    sums: defaultdict[str, float] = defaultdict(int)
    for some in amounts:
        for name, amount in some.items():
            sums[name] = min(sums[name] + amount, sys.float_info.max)
    return dict(sums)


def _amounts(kept: str) -> dict[str, float]:
    """Return the valid amounts in a JSON text: any worker can save a step of this name with any content."""
    found = json_text.loads(kept)
    named = found.items() if isinstance(found, dict) else ()
    return {name: amount for name, amount in named if is_name(name) and is_amount(amount)}
