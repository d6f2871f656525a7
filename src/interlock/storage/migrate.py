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
    """Return every migration of one engine, oldest first."""
    found = [
        Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text())
        for file in (files(package) / "migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return sorted(found)


def pending(known: Sequence[Migration], applied: dict[int, str]) -> list[Migration]:
    """Return the migrations to apply; `applied` maps numbers to checksums. Reject unknown or changed ones."""
    for number, checksum in applied.items():
        ours = next((m for m in known if m.number == number), None)
        if ours is None:
            raise SchemaMismatch(
                f"the database has migration {number}, which this version of Interlock does not know; use a newer one"
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
