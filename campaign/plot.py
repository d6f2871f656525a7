"""Plots as SVG files, for reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

WIDTH, HEIGHT, LEFT, TOP = 720, 220, 80, 30
COLORS: Final = ("#1f6feb", "#d1242f", "#2da44e", "#8250df")


def lines(title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """Draw series of points over a common axis, from 0; each point is x and y."""
    points = [point for some in series.values() for point in some] or [(0.0, 0.0)]
    right, top = max(x for x, _ in points) or 1.0, max(y for _, y in points) or 1.0
    parts = [f'<text x="{LEFT}" y="18" font-weight="bold">{escape(title)}</text>']
    for part in range(5):
        y = TOP + HEIGHT * part / 4
        parts.append(f'<line x1="{LEFT}" y1="{y:.0f}" x2="{LEFT + WIDTH}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{top * (4 - part) / 4:.4g}</text>')
    for number, (name, some) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{LEFT + WIDTH * x / right:.1f},{TOP + HEIGHT * (1 - y / top):.1f}" for x, y in some)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}"/>')
        parts.append(f'<text x="{LEFT + 150 * number}" y="{TOP + HEIGHT + 36}" fill="{color}">{escape(name)}</text>')
    parts.append(
        f'<text x="{LEFT + WIDTH}" y="{TOP + HEIGHT + 18}" text-anchor="end">{right:.4g} {escape(unit)}</text>'
    )
    size = f'width="{LEFT + WIDTH + 20}" height="{TOP + HEIGHT + 50}"'
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">\n{body}\n</svg>\n'


def write(
    directory: Path, name: str, title: str, unit: str, series: Mapping[str, Sequence[tuple[float, float]]]
) -> str:
    """Write one plot and return its file name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.svg").write_text(lines(title, unit, series))
    return f"{name}.svg"
