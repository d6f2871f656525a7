"""Numbered migrations: the same names on every engine, applied once, in order, and never changed afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from interlock.errors import SchemaMismatch


class Migration(NamedTuple):
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def migrations(package: str) -> list[Migration]:
    """Return the migrations of one engine, oldest first.

    The first one is the schema: the files of the directory `schema`, by concern. They are edited in place until the
    first release. From then on every change is a file `NNNN_name.sql` in the directory `migrations`.
    """
    schema, later = (_sql_files(package, directory) for directory in ("schema", "migrations"))
    found = [Migration(int(name[:4]), name, text) for name, text in later]
    if schema:
        found.insert(0, Migration(1, "0001_schema", "\n".join(text for _, text in schema)))
    return found


def _sql_files(package: str, directory: str) -> list[tuple[str, str]]:
    place = files(package) / directory
    if not place.is_dir():
        return []
    return sorted(
        (file.name.removesuffix(".sql"), file.read_text()) for file in place.iterdir() if file.name.endswith(".sql")
    )


def pending(known: Sequence[Migration], applied: dict[int, str]) -> list[Migration]:
    """Return the migrations to apply; `applied` maps numbers to checksums. Reject unknown or changed ones."""
    for number, checksum in applied.items():
        ours = next((m for m in known if m.number == number), None)
        if ours is None:
            raise SchemaMismatch(
                f"the database was migrated by a newer version of Interlock (migration {number}): install that version"
            )
        if ours.checksum != checksum:
            raise SchemaMismatch(
                f"migration {ours.name} differs from the one that made this database; restore the original file"
            )
    return [m for m in known if m.number not in applied]


@cache  # read once: an upgrade replaces the files before it restarts the process
def known_migrations(package: str) -> Mapping[int, str]:
    """Return the names of the migrations that this program was written for, by number."""
    return {m.number: m.name for m in migrations(package)}


def lacking(package: str, applied: Collection[int]) -> str | None:
    """Return the first migration that a database lacks; newer ones than this program knows are fine."""
    return next((name for number, name in known_migrations(package).items() if number not in applied), None)
