"""What a part of the campaign is asked for, what it found, and the report over all parts."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import apsw

OUT: Final = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Plan:
    """How much a part does: it stops at its size or when its time is over, whichever comes first."""

    seed: int
    size: int
    seconds: float
    say: Callable[[str], None]


@dataclass
class Outcome:
    """What a part did. A violation is a broken promise, with what is needed to see it again."""

    part: str
    unit: str
    seed: int
    asked: int
    done: int = 0
    seconds: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.violations:
            return "violated"
        return "held" if self.done >= self.asked else "held, but cut off by its time limit"


class Stopwatch:
    """Tells a part when its time is over, and prints its progress every few seconds."""

    def __init__(self, plan: Plan, outcome: Outcome, every: float = 10.0) -> None:
        self._plan, self._outcome, self._every = plan, outcome, every
        self._began = self._said = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether to stop; called between units of work."""
        now = time.monotonic()
        self._outcome.seconds = round(now - self._began, 1)
        if now - self._said >= self._every:
            self._said = now
            self._plan.say(
                f"{self._outcome.part}: {self._outcome.done:,} of {self._plan.size:,} {self._outcome.unit}, "
                f"{self._outcome.seconds:.0f} s, {len(self._outcome.violations)} violations"
            )
        return now - self._began >= self._plan.seconds or self._outcome.done >= self._plan.size


def write_report(outcomes: Sequence[Outcome], directory: Path) -> Path:
    """Write report.json and report.md, and return the path of the second."""
    directory.mkdir(parents=True, exist_ok=True)
    system = f"{platform.system()} {platform.machine()}"
    machine = f"{system}, Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    found = {"machine": machine, "parts": [asdict(outcome) | {"verdict": outcome.verdict} for outcome in outcomes]}
    (directory / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    lines = ["# Report of the campaign", "", machine, "", "| Part | Done | Asked for | Seed | Seconds | Verdict |"]
    lines.append("|---|---|---|---|---|---|")
    for one in outcomes:
        lines.append(
            f"| {one.part} | {one.done:,} {one.unit} | {one.asked:,} | {one.seed} | {one.seconds:.0f} | {one.verdict} |"
        )
    for one in outcomes:
        lines += ["", f"## {one.part}", ""]
        lines += [f"- {name}: {value}" for name, value in one.numbers.items()]
        lines += [f"- **violation**: {text}" for text in one.violations]
    path = directory / "report.md"
    path.write_text("\n".join(lines) + "\n")
    return path
