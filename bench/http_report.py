"""The results over HTTP: a table, the same as JSON and Markdown, and bars in SVG."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from rich import box
from rich.console import Console
from rich.table import Table

from bench.http_plan import Row
from bench.plan import TITLES
from bench.plot import BAR, HEAD, LEFT, LINE, STYLE, WIDTH

HEADINGS = ("measurement", "connections", "jobs/s", "p50 ms", "p95 ms", "p99 ms", "before", "target", "")


def show(console: Console, rows: Sequence[Row]) -> None:
    for engine in dict.fromkeys(row.engine for row in rows):
        table = Table(title=TITLES[engine], title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading in ("measurement", "") else "right", no_wrap=True)
        for row in rows:
            if row.engine == engine:
                table.add_row(*cells(row), style=None if row.met is not False else "yellow")
        console.print(table)


def markdown(rows: Iterable[Row]) -> str:
    lines = ["| engine | " + " | ".join(HEADINGS[:-1]) + " | met |", "|---|---" + "|--:" * 7 + "|---|"]
    lines += [f"| {TITLES[row.engine]} | " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.what.title,
        str(row.what.connections),
        f"{row.rate:,.0f}",
        f"{row.p50:.1f}",
        f"{row.p95:.1f}",
        f"{row.p99:.1f}",
        "" if row.ratio is None else f"{row.ratio:.2f} x",
        target(row),
        "" if row.met is None else "met" if row.met else "not met",
    )


def target(row: Row) -> str:
    if row.what.jobs_per_second is None:
        return ""
    return f"≥ {row.what.jobs_per_second:,.0f}" + ("" if row.what.p95_ms is None else f", p95 ≤ {row.what.p95_ms:.0f}")


def draw(rows: Sequence[Row]) -> str:
    """A block for each engine and measurement, a bar for each number of connections; the mark is the target."""
    y = 0
    parts: list[str] = []
    for engine, title in dict.fromkeys((row.engine, row.what.title) for row in rows):
        block = [row for row in rows if (row.engine, row.what.title) == (engine, title)]
        top = max(max(row.rate, row.what.jobs_per_second or 0) for row in block)
        parts.append(f'<text class="head" x="12" y="{y + 23}">{TITLES[engine]}: {escape(title)}, jobs/s</text>')
        y += HEAD
        for row in block:
            parts += _bar(row, y, BAR / top)
            y += LINE
        y += LINE // 2
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img" '
        f'aria-label="Interlock over HTTP">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _bar(row: Row, y: int, scale: float) -> list[str]:
    middle = y + LINE / 2
    given = f"{row.what.connections} connection{'s' if row.what.connections > 1 else ''}"
    parts = [
        f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{given}</text>',
        f'<rect class="bar" x="{LEFT}" y="{y + 4}" width="{row.rate * scale:.1f}" height="{LINE - 8}"/>',
    ]
    if row.what.jobs_per_second is not None:
        x = LEFT + row.what.jobs_per_second * scale
        parts.append(f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{y + 1}" y2="{y + LINE - 1}"/>')
    label = f"{row.rate:,.0f}   p50 {row.p50:.1f}, p95 {row.p95:.1f} ms"
    parts.append(f'<text x="{LEFT + BAR + 10}" y="{middle + 4}">{escape(label)}</text>')
    return parts


def save(directory: Path, machine: Mapping[str, object], options: Mapping[str, object], rows: Sequence[Row]) -> Path:
    path = directory / "http.json"
    results = {"machine": machine, "options": options, "results": [row.to_dict() for row in rows]}
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (directory / "http.md").write_text(markdown(rows))
    (directory / "http.svg").write_text(draw(rows))
    return path
