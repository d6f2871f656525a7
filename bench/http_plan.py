"""What is timed over HTTP, what should be reached, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from bench.load import Kind
from bench.plan import TITLES, EngineName

CONNECTIONS = (1, 8, 32, 64)
BATCH = 100


class Measurement(NamedTuple):
    """One thing to time: single calls or batches, and what should be reached."""

    kind: Kind
    connections: int
    batch: int = 1
    jobs_per_second: float | None = None
    p95_ms: float | None = None

    @property
    def title(self) -> str:
        what = "create" if self.kind == "create" else "create, claim, complete"
        return what if self.batch == 1 else f"{what}, {self.batch} a call"


class Row(NamedTuple):
    """What one measurement came to, a rate and a few times for each round."""

    engine: EngineName
    what: Measurement
    rates: Sequence[float]
    p50: float
    p95: float
    p99: float
    before: Sequence[float] = ()
    """The rates of an earlier version, in the same rounds."""

    @property
    def ratio(self) -> float | None:
        """How many times the rate of the earlier version."""
        ratios = [now / before for now, before in zip(self.rates, self.before, strict=False)]
        return median(ratios) if ratios else None

    @property
    def rate(self) -> float:
        return median(self.rates)

    @property
    def met(self) -> bool | None:
        if self.what.jobs_per_second is None:
            return None
        return self.rate >= self.what.jobs_per_second and (self.what.p95_ms is None or self.p95 <= self.what.p95_ms)

    def to_dict(self) -> dict[str, object]:
        return {
            "engine": TITLES[self.engine],
            "measurement": self.what.title,
            "connections": self.what.connections,
            "jobs_per_second": round(self.rate, 1),
            "rounds": [round(rate, 1) for rate in self.rates],
            "ratio_to_before": None if self.ratio is None else round(self.ratio, 3),
            "p50_ms": round(self.p50, 2),
            "p95_ms": round(self.p95, 2),
            "p99_ms": round(self.p99, 2),
            "target_jobs_per_second": self.what.jobs_per_second,
            "target_p95_ms": self.what.p95_ms,
            "met": self.met,
        }


PLAN = (
    *(Measurement("create", n, 1, *((2000, 40) if n == 32 else ())) for n in CONNECTIONS),
    *(Measurement("cycle", n, 1, *((700, 40) if n == 32 else ())) for n in CONNECTIONS),
    *(Measurement("create", n, BATCH, 10_000 if n == 8 else None) for n in (1, 8)),
    *(Measurement("cycle", n, BATCH, 10_000 if n == 8 else None) for n in (1, 8)),
)
