"""From rates to rows: medians, the ratio of medians, and how far the ratios of single rounds lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from bench.plan import TITLES, EngineName, Measurement
from bench.run import Rates

BARE = "bare"


class Row(NamedTuple):
    """One comparison: ours beside something else, a rate for each round."""

    engine: EngineName
    title: str
    beside: str
    others: Sequence[float]
    ours: Sequence[float]
    target: float | None

    @property
    def other(self) -> float:
        return median(self.others)

    @property
    def our(self) -> float:
        return median(self.ours)

    @property
    def ratio(self) -> float:
        return self.our / self.other

    @property
    def range(self) -> tuple[float, float]:
        ratios = [our / other for our, other in zip(self.ours, self.others, strict=True)]
        return min(ratios), max(ratios)

    @property
    def met(self) -> bool | None:
        return None if self.target is None else self.ratio >= self.target

    def to_dict(self) -> dict[str, object]:
        return {
            "engine": TITLES[self.engine],
            "measurement": self.title,
            "beside": self.beside,
            "beside_jobs_per_second": round(self.other, 1),
            "ours_jobs_per_second": round(self.our, 1),
            "ratio": round(self.ratio, 4),
            "ratio_range": [round(ratio, 4) for ratio in self.range],
            "target": self.target,
            "met": self.met,
            "rounds": {
                "beside": [round(rate, 1) for rate in self.others],
                "ours": [round(rate, 1) for rate in self.ours],
            },
        }


def rows(engine: EngineName, plan: Sequence[Measurement], found: Mapping[str, Sequence[Rates]]) -> list[Row]:
    """First everything beside the bare limit, then what is compared with another measurement of ours."""
    by_key = {what.key: what for what in plan}
    ours = {key: [rates.ours for rates in rounds] for key, rounds in found.items()}
    made = []
    for what in plan:
        bare = [rates.bare for rates in found[what.key] if rates.bare is not None]
        if bare:
            made.append(Row(engine, what.title, BARE, bare, ours[what.key], what.target))
    for what in plan:
        if what.times in by_key:
            made.append(Row(engine, what.title, "one client", ours[what.times], ours[what.key], what.times_target))
    return made
