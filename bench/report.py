"""The table on the screen and in Markdown, and the results as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from bench.plan import TITLES
from bench.results import BARE, Row

HEADINGS = ("measurement", "beside", "its jobs/s", "our jobs/s", "ratio", "range", "target", "")


def show(console: Console, rows: Sequence[Row]) -> None:
    for engine in dict.fromkeys(row.engine for row in rows):
        table = Table(title=TITLES[engine], title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for heading in HEADINGS:
            words = heading in ("measurement", "beside", "")
            table.add_column(heading, justify="left" if words else "right", no_wrap=True)
        for row in rows:
            if row.engine == engine:
                table.add_row(*cells(row), style=None if row.met is not False else "yellow")
        console.print(table)


def markdown(rows: Iterable[Row]) -> str:
    """The same table for docs/explanation/benchmarks.md."""
    lines = ["| engine | " + " | ".join(HEADINGS[:-1]) + " | met |", "|---" * 2 + "|---" + "|--:" * 5 + "|---|"]
    lines += [f"| {TITLES[row.engine]} | " + " | ".join(cells(row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    low, high = row.range
    return (
        row.title,
        row.beside,
        f"{row.other:,.0f}",
        f"{row.our:,.0f}",
        ratio(row, row.ratio),
        f"{ratio(row, low)} to {ratio(row, high)}",
        "" if row.target is None else f"≥ {ratio(row, row.target)}",
        "" if row.met is None else "met" if row.met else "not met",
    )


def ratio(row: Row, value: float) -> str:
    """A part of the bare limit, or so many times something of our own."""
    return f"{value:.2f}" if row.beside == BARE else f"{value:.1f} x"


def save(directory: Path, machine: Mapping[str, object], options: Mapping[str, object], rows: Sequence[Row]) -> Path:
    path = directory / "results.json"
    results = {"machine": machine, "options": options, "results": [row.to_dict() for row in rows]}
    path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    (directory / "results.md").write_text(markdown(rows))
    return path
