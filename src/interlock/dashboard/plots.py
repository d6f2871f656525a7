"""Plots as the paths and boxes of an SVG: numbers in, geometry out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.dashboard.samples import Sample
from interlock.domain.registry import QueueStats

WIDTH: Final = 240
HEIGHT: Final = 48
FEWEST: Final = 30  # moments that fill the width: a younger plot begins further right
PARTS: Final = ("in_progress", "ready", "delayed", "blocked", "waiting_for_approval", "dead_letter")


class Line(NamedTuple):
    """A line and the area below it, newest at the right edge."""

    line: str
    area: str
    top: float


class Flow(NamedTuple):
    """What moved in the last minutes: depth, what runs, what ended, and how old the oldest was."""

    ready: Line | None
    running: Line | None
    done: Line | None
    oldest: Line | None


class Part(NamedTuple):
    """One piece of a bar."""

    name: str
    jobs: int
    x: float
    width: float


def line(values: Sequence[float], *, width: int = WIDTH, height: int = HEIGHT) -> Line | None:
    """None while there is not enough to draw."""
    if len(values) < 2:
        return None
    top = max(*values, 1.0)
    step = width / (max(len(values), FEWEST) - 1)
    left = width - step * (len(values) - 1)
    points = [f"{left + step * i:.1f},{height - 2 - (height - 4) * value / top:.1f}" for i, value in enumerate(values)]
    path = "M" + " L".join(points)
    return Line(path, f"{path} L{width},{height} L{left:.1f},{height} Z", top)


def flow(moments: Sequence[Sample]) -> Flow:
    """The plots of one queue, or of all."""
    waiting, running, done, oldest = ([moment[i] for moment in moments] for i in range(len(Sample._fields)))
    return Flow(line(waiting), line(running), line(done), line(oldest))


def bar(queue: QueueStats, *, width: float = 100.0) -> list[Part]:
    """Where the unfinished jobs of a queue are; every kind that has any is wide enough to be seen."""
    counts = [(name, getattr(queue, name)) for name in PARTS if getattr(queue, name)]
    total = sum(count for _, count in counts)
    least = 3.0
    spare = width - least * len(counts)
    parts, x = [], 0.0
    for name, count in counts:
        wide = least + spare * count / total
        parts.append(Part(name, count, round(x, 2), round(wide, 2)))
        x += wide
    return parts
