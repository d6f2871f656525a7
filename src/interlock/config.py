"""Settings: a flag beats the environment, which beats interlock.toml."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from interlock.errors import Invalid

PREFIX = "INTERLOCK_"
FILE = "interlock.toml"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a process of Interlock is told from outside."""

    database: str = "sqlite:///interlock.db"
    tenant: str = "default"


def load(
    flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """The settings in force; a flag that is None was not given."""
    environ = os.environ if environ is None else environ
    values = _from_file((directory or Path.cwd()) / FILE)
    values |= {name: value for name in _names() if (value := _from_environ(name, environ)) is not None}
    values |= {name: value for name, value in flags.items() if value is not None}
    return Settings(**values)


def _names() -> set[str]:
    return {field.name for field in fields(Settings)}


def _from_environ(name: str, environ: Mapping[str, str]) -> str | None:
    """The variable itself, or the content of the file that NAME_FILE points to, for secrets."""
    variable = PREFIX + name.upper()
    if variable in environ:
        return environ[variable]
    if path := environ.get(f"{variable}_FILE"):
        try:
            return Path(path).read_text().strip()
        except OSError as error:
            raise Invalid(f"{variable}_FILE names a file that cannot be read: {error}") from error
    return None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error
    if unknown := sorted(values.keys() - _names()):
        raise Invalid(f"{path} has unknown settings: {', '.join(unknown)}")
    return values
