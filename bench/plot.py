"""The results as bars, in SVG written by hand; readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from bench.plan import TITLES
from bench.report import ratio
from bench.results import BARE, Row

WIDTH, LEFT, BAR, LINE = 900, 330, 340, 26
HEAD = 34
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a; }
  .head { font-weight: 600; font-size: 15px; }
  .bar { fill: #3b82c4; } .whole { fill: #8b949e; opacity: .22; }
  .mark { stroke: #cf6a1c; stroke-width: 2; } .range { stroke: #57606a; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b1; } .range { stroke: #c9d1d9; } }
"""


def draw(rows: Sequence[Row]) -> str:
    """A block for each engine and each thing compared with; the mark is the target, the line the range of rounds."""
    y = 0
    parts: list[str] = []
    for engine, beside in dict.fromkeys((row.engine, row.beside) for row in rows):
        block = [row for row in rows if (row.engine, row.beside) == (engine, beside)]
        widest = max([row.range[1] for row in block] + [row.target or 0 for row in block])
        top = max(1.0, widest) if beside == BARE else widest
        what = "jobs/s as a part of the bare limit" if beside == BARE else f"jobs/s as a multiple of {beside}"
        parts.append(f'<text class="head" x="12" y="{y + 23}">{TITLES[engine]}: {escape(what)}</text>')
        y += HEAD
        for row in block:
            parts += _bar(row, y, BAR / top, full=beside == BARE)
            y += LINE
        y += LINE // 2
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        f'aria-label="Interlock beside the bare limit">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bar(row: Row, y: int, scale: float, *, full: bool) -> list[str]:
    middle = y + LINE / 2
    low, high = (LEFT + value * scale for value in row.range)
    parts = [f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{escape(row.title)}</text>']
    if full:
        parts.append(f'<rect class="whole" x="{LEFT}" y="{y + 4}" width="{scale:.1f}" height="{LINE - 8}"/>')
    parts.append(f'<rect class="bar" x="{LEFT}" y="{y + 4}" width="{row.ratio * scale:.1f}" height="{LINE - 8}"/>')
    parts.append(f'<line class="range" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>')
    if row.target is not None:
        x = LEFT + row.target * scale
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1}" y2="{y + LINE - 1}"/>')
    label = f"{ratio(row, row.ratio)}  ({row.our:,.0f} of {row.other:,.0f})"
    if not full:
        label = f"{ratio(row, row.ratio)}  ({row.our:,.0f}, {row.beside} {row.other:,.0f})"
    parts.append(f'<text x="{LEFT + BAR + 10}" y="{middle + 4}">{escape(label)}</text>')
    return parts


def save(directory: Path, rows: Sequence[Row]) -> Path:
    path = directory / "results.svg"
    path.write_text(draw(rows))
    return path
