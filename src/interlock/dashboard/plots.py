"""Plots as the paths and boxes of an SVG: numbers in, geometry out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from interlock.dashboard.hour import Hour
from interlock.domain.registry import QueueStats

WIDTH: Final = 240
HEIGHT: Final = 48
GROUND: Final = 47  # where nothing is; room is left for the width of a line, here and above the highest
PARTS: Final = ("in_progress", "ready", "delayed", "blocked", "waiting_for_approval", "dead_letter")


class Line(NamedTuple):
    """A line and the area below it, newest at the right edge; `top` is its scale, `most` the highest it came."""

    line: str
    area: str
    top: float
    most: float


class Flow(NamedTuple):
    """What moved in the last hour: depth, what runs, what came and ended by the minute, and how old the oldest was."""

    waiting: Line
    running: Line
    enqueued: Line
    ended: Line
    failed: Line | None  # of those that ended, on their scale; None if none did
    oldest: Line


class Part(NamedTuple):
    """One piece of a bar."""

    name: str
    jobs: int
    x: float
    width: float


def line(values: Sequence[float | None]) -> Line:
    """One point for each value, from edge to edge; the line is broken where a value is not known."""
    known = [value for value in values if value is not None]
    top = _top(known)
    step = WIDTH / max(len(values) - 1, 1)
    placed = [(step * i, None if value is None else _height(value, top)) for i, value in enumerate(values)]
    runs = [_corners([(x, y) for x, y in run if y is not None]) for has, run in groupby(placed, _is_known) if has]
    return _drawn(runs, top, known)


def steps(values: Sequence[float], top: float | None = None) -> Line:
    """One stair for each value, as wide as the time it was counted in."""
    top = top or _top(values)
    wide = WIDTH / len(values)
    heights = [_height(value, top) for value in values]
    return _drawn([_corners([(wide * (i + side), y) for i, y in enumerate(heights) for side in (0, 1)])], top, values)


def flow(hour: Hour, ages: Sequence[float | None] = ()) -> Flow:
    """The plots of one queue, or of all."""
    ended = steps([done + failed for done, failed in zip(hour.succeeded, hour.failed, strict=True)])
    failed = steps(hour.failed, ended.top) if any(hour.failed) else None
    return Flow(line(hour.waiting), line(hour.running), steps(hour.enqueued), ended, failed, line(ages))


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


def _top(values: Sequence[float]) -> float:
    return max([*values, 1.0])


def _height(value: float, top: float) -> float:
    return GROUND - (GROUND - 2) * value / top


def _is_known(point: tuple[float, float | None]) -> bool:
    return point[1] is not None


def _corners(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points without those in the middle of a level: a queue that rests costs the page nothing."""
    inner = zip(points, points[1:], points[2:], strict=False)
    return [points[0], *(here for before, here, after in inner if not before[1] == here[1] == after[1]), points[-1]]


def _drawn(runs: Sequence[Sequence[tuple[float, float]]], top: float, values: Sequence[float]) -> Line:
    paths = ["M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs]
    areas = [
        f"{path} L{run[-1][0]:.1f},{GROUND} L{run[0][0]:.1f},{GROUND} Z" for path, run in zip(paths, runs, strict=True)
    ]
    return Line(" ".join(paths), " ".join(areas), top, max(values, default=0.0))
