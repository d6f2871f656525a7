"""All contestants as bars, in SVG written by hand; readable on light and on dark pages."""

from __future__ import annotations

from statistics import median
from xml.sax.saxutils import escape

from bench.peers.plan import BEFORE, MEASUREMENTS, OURS, Rounds
from bench.plan import TITLES
from bench.plot import BAR, HEAD, LEFT, LINE, STYLE, WIDTH


def draw(rounds: Rounds) -> str:
    """A block for each measurement, on a scale of its own: Interlock first, then the others."""
    y = 0
    parts: list[str] = []
    for what, title in MEASUREMENTS.items():
        values = {(who, engine): median(found) for (who, engine, one), found in rounds.items() if one == what}
        if not values:
            continue
        unit = "ms, less is better" if what.startswith("start") else "jobs/s"
        parts.append(f'<text class="head" x="12" y="{y + 23}">{escape(title)}: {unit}</text>')
        y += HEAD
        scale = BAR / max(values.values())
        for (who, engine), value in sorted(values.items(), key=lambda one: one[0][0] not in (OURS, BEFORE)):
            label = f"{value:,.2f}" if what.startswith("start") else f"{value:,.0f}"
            parts += _bar(f"{who}, {TITLES[engine]}", value * scale, label, y, "bar" if who == OURS else "whole")
            y += LINE
        y += LINE // 2
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        f'aria-label="Interlock beside other queues">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bar(title: str, width: float, label: str, y: int, style: str) -> list[str]:
    middle = y + LINE / 2
    return [
        f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(title)}</text>',
        f'<rect class="{style}" x="{LEFT}" y="{y + 4}" width="{max(width, 1):.1f}" height="{LINE - 8}"/>',
        f'<text x="{LEFT + max(width, 1) + 10:.1f}" y="{middle + 4}">{escape(label)}</text>',
    ]
