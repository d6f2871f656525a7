"""The rates of all contestants as bars, in SVG written by hand; readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from bench.plan import TITLES
from bench.plot import BAR, HEAD, LEFT, LINE, STYLE, WIDTH
from bench.results import Row

OURS = "Interlock, with its whole audit"


def draw(rows: Sequence[Row]) -> str:
    """A block for each engine: ours first, then the others, all on one scale."""
    y = 0
    parts: list[str] = []
    for engine in dict.fromkeys(row.engine for row in rows):
        block = [row for row in rows if row.engine == engine]
        ours = block[0].our
        scale = BAR / max(ours, *(row.other for row in block))
        parts.append(f'<text class="head" x="12" y="{y + 23}">{TITLES[engine]}: no-op jobs drained per second</text>')
        y += HEAD
        parts += _bar(OURS, ours * scale, f"{ours:,.0f}", y)
        for row in block:
            y += LINE
            parts += _bar(row.title, row.other * scale, f"{row.other:,.0f}  (ours is {row.ratio:.1f} x)", y, "whole")
        y += LINE + LINE // 2
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        f'aria-label="Interlock beside other queues">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bar(title: str, width: float, label: str, y: int, style: str = "bar") -> list[str]:
    middle = y + LINE / 2
    return [
        f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(title)}</text>',
        f'<rect class="{style}" x="{LEFT}" y="{y + 4}" width="{max(width, 1):.1f}" height="{LINE - 8}"/>',
        f'<text x="{LEFT + max(width, 1) + 10:.1f}" y="{middle + 4}">{escape(label)}</text>',
    ]
