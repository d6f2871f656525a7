"""What is measured of every queue, and what Interlock should reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from bench.plan import TITLES, EngineName

OURS: Final = "Interlock"
BEFORE: Final = "Interlock before"
MEASUREMENTS: Final = {
    "bulk": "enqueue, batches of 1000",
    "single": "enqueue, one client",
    "concurrent": "enqueue, 64 clients",
    "drain-1": "drain, one worker process",
    "drain-2": "drain, two worker processes",
    "start": "start latency p50",
    "start-p95": "start latency p95",
}
Key = tuple[str, EngineName, str]  # contestant, engine, measurement
Rounds = Mapping[Key, Sequence[float]]


class Aim(NamedTuple):
    """What Interlock should reach: a multiple of another contestant in the same round, or a time."""

    measurement: str
    engine: EngineName
    other: str
    other_engine: EngineName
    floor: float
    goal: float | None = None


AIMS: Final = (
    Aim("drain-2", "postgres", "graphile-worker", "postgres", 0.9, 1.0),
    Aim("drain-1", "postgres", "graphile-worker", "postgres", 1.15),
    Aim("drain-2", "postgres", "PgQueuer", "postgres", 2.2),
    Aim("drain-1", "sqlite", BEFORE, "sqlite", 1.2),
    Aim("bulk", "postgres", "PgQueuer", "postgres", 0.8, 1.0),
    Aim("bulk", "sqlite", "PgQueuer", "postgres", 1.0),
    Aim("single", "postgres", "PgQueuer", "postgres", 0.65, 0.8),
    Aim("concurrent", "postgres", BEFORE, "postgres", 1.3),
    Aim("concurrent", "sqlite", BEFORE, "sqlite", 1.3),
)
MAX_MS: Final[Mapping[tuple[str, EngineName], float]] = {
    ("start", "postgres"): 1.0,
    ("start-p95", "postgres"): 2.0,
    ("start", "sqlite"): 5.0,
}


class Comparison(NamedTuple):
    """An aim and what came of it."""

    aim: Aim
    ours: float
    theirs: float
    ratios: Sequence[float]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def met(self) -> bool:
        return self.ratio >= self.aim.floor

    def cells(self) -> tuple[str, ...]:
        aim = self.aim
        goal = f" ({aim.goal:g})" if aim.goal else ""
        return (
            f"{TITLES[aim.engine]}: {MEASUREMENTS[aim.measurement]}",
            f"{aim.other}, {TITLES[aim.other_engine]}",
            f"{self.theirs:,.0f}",
            f"{self.ours:,.0f}",
            f"{self.ratio:.2f} x",
            f"{min(self.ratios):.2f} to {max(self.ratios):.2f}",
            f"≥ {aim.floor:g}{goal}",
            "met" if self.met else "not met",
        )


def comparisons(rounds: Rounds) -> list[Comparison]:
    """All aims whose two sides were measured; a ratio is one of the same round."""
    made = []
    for aim in AIMS:
        ours = rounds.get((OURS, aim.engine, aim.measurement), ())
        theirs = rounds.get((aim.other, aim.other_engine, aim.measurement), ())
        if ratios := [our / their for our, their in zip(ours, theirs, strict=False)]:
            made.append(Comparison(aim, median(ours), median(theirs), ratios))
    return made
