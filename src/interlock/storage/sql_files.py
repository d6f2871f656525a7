"""Named SQL statements from the .sql files next to an engine."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from interlock.storage.job_columns import expand

MARK: Final = "-- name: "


def load(package: str, file: str) -> dict[str, str]:
    """Return the statements of one file by name, with the column lists of `job_columns` in place of their marks.

    Comments and line breaks are removed, because statement caches compare the whole text.
    """
    statements: dict[str, str] = {}
    for part in (files(package) / file).read_text().split(MARK)[1:]:
        name, *lines = map(str.strip, part.splitlines())
        text = " ".join(line for line in lines if line and not line.startswith("--"))
        statements[name] = expand(text.removesuffix(";"))
    return statements
