"""Output of the command line: tables and JSON, never a raw control character."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from interlock.errors import Invalid
from interlock.wire import when

To = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="write to FILE (atomically) instead of standard output")
]
WIDE: Final = 240
CELL: Final = 100


def console() -> Console:
    """Create a console for each use, so that it follows redirected output; color only on a terminal."""
    return ReportingConsole(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDE)


class ReportingConsole(Console):
    """A console that does not end the process on a broken pipe."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # the CLI exits with its own code


def escape_control(value: object) -> str:
    """Escape control characters, so that text cannot control the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in str(value))


def print_json(value: object) -> None:
    """Print one JSON document to standard output."""
    sys.stdout.write(_escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def json_line(value: object) -> str:
    """Encode as one JSON document on one line, regardless of white space in the values."""
    return _escaped_json(msgspec.json.format(msgspec.json.encode(value), indent=-1).decode()) + "\n"


def _escaped_json(text: str) -> str:
    """Escape control characters. In JSON they occur only inside strings, where an escape has the same meaning."""
    return "".join(c if c.isprintable() or c == "\n" else _escape(c) for c in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print aligned columns, with a dash for absent values."""
    encoded = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        encoded.add_column(column, overflow="fold")
    for row in rows:
        encoded.add_row(*(Text("-" if value is None or value == "" else escape_control(value)) for value in row))
    wide = console()
    wide.width = max(wide.width, WIDE)  # on a narrow terminal, wrap lines, not cells: a split ID cannot be copied
    wide.print(encoded)


def facts(values: Mapping[str, Any]) -> None:
    """Print one name and value per line; omit absent values."""
    encoded = Table(box=None, pad_edge=False, show_header=False)
    encoded.add_column(style="bold")
    encoded.add_column(overflow="fold")
    for name, value in values.items():
        if value is None or value == [] or value == ():
            continue
        if isinstance(value, (dict, list, bool)):
            value = msgspec.json.encode(value).decode()
        elif isinstance(value, msgspec.Raw):
            value = bytes(value).decode()
        encoded.add_row(name, Text(escape_control(value)))
    console().print(encoded)


def print_line(message: str) -> None:
    console().print(Text(escape_control(message)))


def time(at: int | None) -> str | None:
    """Format a time to the second, for a table."""
    return None if at is None else when(at)[:19] + "Z"


def shortened(text: str | None) -> str | None:
    """Truncate a long text, for a table."""
    return text if text is None or len(text) <= CELL else f"{text[: CELL - 1]}…"


def counted(number: int, what: str) -> str:
    """Return the number and the noun, with a plural s unless it is 1."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


@contextmanager
def progress(what: str, *, unit: str = "jobs") -> Iterator[Callable[[int], None]]:
    """Print progress to standard error: in place on a terminal, otherwise a line each time the number doubles."""
    errors = Console(stderr=True)
    if errors.is_terminal:
        with errors.status(f"{what} 0 {unit} …") as status:
            yield lambda number: status.update(f"{what} {number} {unit} …")
        return
    reported = 500

    def report(number: int) -> None:
        nonlocal reported
        if number >= 2 * reported:
            reported = number
            print(f"{what} {number} {unit} …", file=sys.stderr, flush=True)

    yield report


@contextmanager
def progress_of_phases() -> Iterator[Callable[[str, int], None]]:
    """Like `progress`, for work in several phases, each of which counts rows."""
    errors = Console(stderr=True)
    if errors.is_terminal:
        with errors.status("…") as status:
            yield lambda phase, number: status.update(f"{phase} {number} rows …")
        return
    reported: dict[str, int] = {}

    def report(phase: str, number: int) -> None:
        if number >= 2 * reported.get(phase, 500):
            reported[phase] = number
            print(f"{phase} {number} rows …", file=sys.stderr, flush=True)

    yield report


@contextmanager
def destination(path: Path | None) -> Iterator[BinaryIO]:
    """Open standard output, or a file that only its owner can read and that is complete or absent."""
    if path is None:
        yield sys.stdout.buffer
    else:
        with _atomic_write(path) as file:
            yield file


@contextmanager
def _atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Write a temporary file, and rename it to its final name once all data is on disk."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise Invalid(f"{path} cannot be written: {error.strerror}", pointer="/output") from error
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        try:
            part.replace(path)
        except OSError as error:
            raise Invalid(f"{path} cannot be written: {error.strerror}", pointer="/output") from error
    finally:
        part.unlink(missing_ok=True)
