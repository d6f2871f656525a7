"""What is measured on each engine, how many jobs each run takes, and what should be reached."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

EngineName = Literal["sqlite", "postgres"]
ENGINES: tuple[EngineName, ...] = ("sqlite", "postgres")
TITLES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
WAYS = 64
CONNECTIONS = 8


class BenchFailed(Exception):
    """A run did not do what it was timed for, so its time means nothing."""


class Measurement(NamedTuple):
    """One thing to time. Ratios compare with the bare limit, with another measurement of ours, or with both."""

    key: str
    title: str
    drains: bool
    """Claim and complete what is there, instead of adding jobs."""
    share: float
    """How much of --jobs one run takes: enough for a run of about a second."""
    batch: int = 1
    ways: int = 1
    """Single enqueues at once."""
    coalesced: bool = True
    connections: int = CONNECTIONS
    has_bare: bool = True
    target: float | None = None
    times: str | None = None
    """The key of another measurement of ours to compare with."""
    times_target: float | None = None

    def jobs(self, of: int) -> int:
        """The number of jobs of one run: whole batches, one at least."""
        return max(round(of * self.share / self.batch), 1) * self.batch


class Side(Protocol):
    """One of the two that are compared, on a database of its own."""

    added: int

    def prepare(self, count: int) -> None:
        """Make the jobs that `enqueue` will add, outside the timing."""
        ...

    async def load(self, count: int) -> None:
        """Add jobs that `drain` will take, outside the timing."""
        ...

    async def enqueue(self, what: Measurement, start: int, stop: int) -> None:
        """Add the prepared jobs from start to stop; every answer comes after its commit."""
        ...

    async def drain(self, batch: int, loops: int, tickets: int | None) -> int:
        """Claim and complete in so many batches, or until nothing is left, and say how many jobs that were."""
        ...

    async def check(self, *, drained: bool) -> None:
        """Fail unless every job that was added is there, and has succeeded if they were drained."""
        ...


def measurements(engine: EngineName) -> list[Measurement]:
    on_sqlite = engine == "sqlite"
    more = 3.0 if on_sqlite else 1.0
    return [
        Measurement("enqueue-1", "enqueue, one by one", drains=False, share=0.1),
        Measurement(
            "enqueue-64", f"enqueue, {WAYS} at once", drains=False, share=more, ways=WAYS, has_bare=False,
            times="enqueue-1", times_target=8 if on_sqlite else 10,
        ),
        Measurement(
            "enqueue-64-plain", f"enqueue, {WAYS} at once, not coalesced", drains=False, share=0.2 * more, ways=WAYS,
            coalesced=False, has_bare=not on_sqlite, times="enqueue-1",
        ),
        Measurement(
            "enqueue-1000", "enqueue, batches of 1000", drains=False, share=more, batch=1000,
            target=0.11 if on_sqlite else 0.17,
        ),
        _drain(1, 0.1, target=0.40 if on_sqlite else None),
        _drain(10, 0.5),
        _drain(100, more, target=0.22 if on_sqlite else 0.25),
        *([] if on_sqlite else [_drain(100, 1.0, 2, target=0.35), _drain(100, 1.0, 4)]),
        _drain(1000, more),
    ]  # fmt: skip


def _drain(batch: int, share: float, connections: int = 1, *, target: float | None = None) -> Measurement:
    title = "claim + complete, " + ("one by one" if batch == 1 else f"batches of {batch}")
    key = f"drain-{batch}"
    if connections > 1:
        title += f", {connections} connections"
        key += f"-on-{connections}"
    return Measurement(key, title, True, share, batch=batch, connections=connections, target=target)
