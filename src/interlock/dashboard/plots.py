"""Plots as SVG paths and boxes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Final, NamedTuple

from interlock.dashboard.queue_metrics import MinuteSeries
from interlock.domain.registry import QueueStats

WIDTH: Final = 240
HEIGHT: Final = 48
BASELINE: Final = 47  # leaves room for the width of the line
LOCATIONS: Final = ("in_progress", "ready", "delayed", "blocked", "waiting_for_approval", "dead_letter")


class PlotLine(NamedTuple):
    """A line and the area below it, newest on the right; `top` is the scale, `maximum` the highest value."""

    line: str
    area: str
    top: float
    maximum: float


class QueuePlots(NamedTuple):
    """The plots of the last hour: depth, running, enqueued and finished per minute, age of the oldest ready job."""

    waiting: PlotLine
    running: PlotLine
    enqueued: PlotLine
    ended: PlotLine
    failed: PlotLine | None  # part of `ended`, on the same scale; None without failures
    oldest: PlotLine


class BarPart(NamedTuple):
    """One segment of a bar."""

    name: str
    jobs: int
    x: float
    width: float


def line(values: Sequence[float | None]) -> PlotLine:
    """Return a line with one point per value; it has gaps where a value is None."""
    known = [value for value in values if value is not None]
    top = _top(known)
    step = WIDTH / max(len(values) - 1, 1)
    placed = [(step * i, None if value is None else _height(value, top)) for i, value in enumerate(values)]
    runs = [_corners([(x, y) for x, y in run if y is not None]) for has, run in groupby(placed, _is_known) if has]
    return _drawn(runs, top, known)


def shares(values: Sequence[float | None]) -> PlotLine | None:
    """Return a step line of percentages, whose scale is at least the whole; None if nothing is known."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    top, wide = max(100.0, *known), WIDTH / len(values)
    placed = ((wide * (i + side), value) for i, value in enumerate(values) for side in (0, 1))
    at = [(x, None if value is None else _height(value, top)) for x, value in placed]
    runs = [_corners([(x, y) for x, y in run if y is not None]) for has, run in groupby(at, _is_known) if has]
    return _drawn(runs, top, known)


def steps(values: Sequence[float], top: float | None = None) -> PlotLine:
    """Return a step line with one step per value."""
    top = top or _top(values)
    wide = WIDTH / len(values)
    heights = [_height(value, top) for value in values]
    return _drawn([_corners([(wide * (i + side), y) for i, y in enumerate(heights) for side in (0, 1)])], top, values)


def queue_plots(series: MinuteSeries, ages: Sequence[float | None] = ()) -> QueuePlots:
    """Return the plots of one queue, or of all queues together."""
    ended = steps([done + failed for done, failed in zip(series.succeeded, series.failed, strict=True)])
    failed = steps(series.failed, ended.top) if any(series.failed) else None
    return QueuePlots(line(series.waiting), line(series.running), steps(series.enqueued), ended, failed, line(ages))


def bar(queue: QueueStats, *, width: float = 100.0) -> list[BarPart]:
    """Return the segments of a queue's jobs by location; each has a visible minimum width."""
    counts = [(name, getattr(queue, name)) for name in LOCATIONS if getattr(queue, name)]
    total = sum(count for _, count in counts)
    least = 3.0
    spare = width - least * len(counts)
    parts, x = [], 0.0
    for name, count in counts:
        wide = least + spare * count / total
        parts.append(BarPart(name, count, round(x, 2), round(wide, 2)))
        x += wide
    return parts


def _top(values: Sequence[float]) -> float:
    return max([*values, 1.0])


def _height(value: float, top: float) -> float:
    return BASELINE - (BASELINE - 2) * value / top


def _is_known(point: tuple[float, float | None]) -> bool:
    return point[1] is not None


def _corners(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Remove points within a horizontal run, which keeps the pages of idle queues small."""
    inner = zip(points, points[1:], points[2:], strict=False)
    return [points[0], *(here for before, here, after in inner if not before[1] == here[1] == after[1]), points[-1]]


def _drawn(runs: Sequence[Sequence[tuple[float, float]]], top: float, values: Sequence[float]) -> PlotLine:
    paths = ["M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in run) for run in runs]
    areas = [
        f"{path} L{run[-1][0]:.1f},{BASELINE} L{run[0][0]:.1f},{BASELINE} Z"
        for path, run in zip(paths, runs, strict=True)
    ]
    return PlotLine(" ".join(paths), " ".join(areas), top, max(values, default=0.0))
