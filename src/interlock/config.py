"""Settings. Flags take precedence over the environment, and that over interlock.toml."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from interlock.errors import Invalid

PREFIX = "INTERLOCK_"
FILE = "interlock.toml"
OFF = "off"
CREDENTIALS = ("tokens", "jwt")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
ADAPTERS = ("codeq", "moonmind", "mcp")
KIB = 1024
# Range of each limit. The minimum of errors and events is the size that workers truncate them to.
LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("body", "payload", "result", "checkpoint", "step", "headers"), (KIB, 64 * KIB * KIB)),
    "event": (8 * KIB, 64 * KIB * KIB),
    "error": (16 * KIB, 64 * KIB * KIB),
    "batch": (1, 1000),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a process."""

    database: str = "sqlite:///interlock.db"
    shards: Mapping[str, str] = field(default_factory=dict)
    shard_supplier: str | None = None
    tenant: str = "default"
    artifacts: str | None = None
    artifact_bytes: int = 50 * 1024 * 1024
    artifact_quota_bytes: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    auth: tuple[str, ...] = ()
    issuers: tuple[Mapping[str, Any], ...] = ()
    host: str = "127.0.0.1"
    port: int = 8420
    hosts: tuple[str, ...] = ()
    rate_per_second: float | None = None
    rate_burst: int = 100
    webhooks_allow: tuple[str, ...] = ()
    retention_days: float | None = None
    strict_types: bool = False
    implicit_agents: bool = True
    faces: tuple[str, ...] = ()
    codeq_producers: tuple[Mapping[str, Any], ...] = ()
    codeq_workers: tuple[Mapping[str, Any], ...] = ()
    codeq_tenant_from_sub: bool = False
    codeq_producer_as_worker: bool = False
    codeq_development: bool = False
    codeq_webhook_secret: str | None = None


def load(
    flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """Load the effective settings; a flag that is None was not given."""
    environ = os.environ if environ is None else environ
    values = _from_file((directory or Path.cwd()) / FILE)
    specified = {name: value for name in _names() if (value := _from_environ(name, environ)) is not None}
    if flags.get("database") is not None or ("database" in specified and "shards" not in specified):
        values.pop("shards", None)  # a single database with higher precedence replaces the shards
        specified.pop("shards", None)
    values |= specified
    values |= {name: value for name, value in flags.items() if value is not None}
    settings = Settings(**{name: _READ[name](value) if name in _READ else value for name, value in values.items()})
    if settings.shards:  # code that needs a single database uses the one with the directory
        settings = replace(settings, database=next(iter(settings.shards.values())))
    if "jwt" in settings.auth and not settings.issuers:
        raise Invalid("auth names jwt, but no issuers are set", pointer="/issuers")
    return settings


def of_shards(shards: Mapping[str, str], **specified: Any) -> Settings:
    """Return settings for an explicit set of shards."""
    if not shards:
        raise Invalid("there must be at least one shard", pointer="/shards")
    checked = _shards(shards)
    return Settings(shards=checked, database=next(iter(checked.values())), **specified)


def sources(
    flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> dict[str, str]:
    """Return the source of each effective setting: a flag, a variable, the file, or the default."""
    environ = os.environ if environ is None else environ
    specified = dict.fromkeys(_names(), "default") | dict.fromkeys(_from_file((directory or Path.cwd()) / FILE), FILE)
    for name in _names():
        variable = PREFIX + name.upper()
        for given in (f"{variable}_FILE", variable):
            if environ.get(given) or variable in environ:
                specified[name] = given
    return specified | {name: f"--{name}" for name, value in flags.items() if value is not None}


def _names() -> set[str]:
    return {field.name for field in fields(Settings)}


def _from_environ(name: str, environ: Mapping[str, str]) -> str | None:
    """Return the variable, or the content of the file that NAME_FILE points to (for secrets)."""
    variable = PREFIX + name.upper()
    if variable in environ:
        return environ[variable]
    if path := environ.get(f"{variable}_FILE"):
        try:
            return Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Invalid(f"{variable}_FILE names a file that cannot be read: {error}") from error
    return None


def _from_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}") from error
    if unknown := sorted(values.keys() - _names()):
        raise Invalid(f"{path} has unknown settings: {', '.join(unknown)}")
    return values


def _auth(value: object) -> tuple[str, ...]:
    """Parse the accepted credentials: `off`, or names as a list or comma-separated."""
    given = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if given == [OFF]:
        return ()
    if not isinstance(given, list) or not given or not all(word in CREDENTIALS for word in given):
        raise Invalid(f"auth must be {OFF}, or a list of {' and '.join(CREDENTIALS)}", pointer="/auth")
    return tuple(dict.fromkeys(given))


def _tables(name: str) -> Callable[[object], tuple[Mapping[str, Any], ...]]:
    """Return a parser of TOML tables, or of a JSON list of objects."""

    def read(value: object) -> tuple[Mapping[str, Any], ...]:
        try:
            given = json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise Invalid(f"{name} cannot be read as JSON: {error}", pointer=f"/{name}") from None
        if not isinstance(given, list) or not all(isinstance(table, Mapping) for table in given):
            raise Invalid(f"{name} must be a list of tables", pointer=f"/{name}")
        return tuple(given)

    return read


def _secret(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Invalid("codeq_webhook_secret must be a text that is not empty", pointer="/codeq_webhook_secret")
    return value


def _limits(value: object) -> Mapping[str, int]:
    """Parse limits by name: a TOML table, or a JSON object."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Invalid(f"limits cannot be read as JSON: {error}", pointer="/limits") from None
    if not isinstance(given, Mapping) or given.keys() - LIMITS.keys():
        raise Invalid(f"limits must be a table of numbers for {', '.join(LIMITS)}", pointer="/limits")
    for name, size in given.items():
        low, high = LIMITS[name]
        if isinstance(size, bool) or not isinstance(size, int) or not low <= size <= high:
            raise Invalid(f"the limit {name} must be a whole number from {low} to {high}", pointer=f"/limits/{name}")
    return dict(given)


def _shards(value: object) -> Mapping[str, str]:
    """Parse database URLs by shard name: a TOML table, or a JSON object."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Invalid(f"shards cannot be read as JSON: {error}", pointer="/shards") from None
    if not isinstance(given, Mapping):
        raise Invalid("shards must be a table of names and database URLs", pointer="/shards")
    for name, url in given.items():
        if not _SHARD_NAME.fullmatch(name):
            raise Invalid(f"{name!r} cannot name a shard: letters, digits, - and _, at most 63", pointer="/shards")
        if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
            raise Invalid(f"shard {name!r} must be a database of PostgreSQL: postgresql://…", pointer=f"/shards/{name}")
    if len(set(given.values())) < len(given):
        raise Invalid("two shards have the same database URL", pointer="/shards")
    return dict(given)


def _hosts(value: object) -> tuple[str, ...]:
    """Parse the accepted host names, as a list or comma-separated."""
    given = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(word, str) and word for word in given):
        raise Invalid("hosts must be a list of host names, without ports", pointer="/hosts")
    return tuple(word.lower() for word in given)


def _adapters(value: object) -> tuple[str, ...]:
    """Parse the protocol adapters to serve, as a list or comma-separated; none if empty."""
    given = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(word in ADAPTERS for word in given):
        raise Invalid(f"faces must be a list of {', '.join(ADAPTERS)}", pointer="/faces")
    return tuple(dict.fromkeys(given))


def _port(value: object) -> int:
    number = _number(value, "port")
    if not 0 <= number <= 65535 or number != int(number):
        raise Invalid("port must be from 0 to 65535", pointer="/port")
    return int(number)


def _rate(value: object) -> float:
    number = _number(value, "rate_per_second")
    if not 0 < number <= 1_000_000:
        raise Invalid("rate_per_second must be above 0 and at most 1000000", pointer="/rate_per_second")
    return number


def _burst(value: object) -> int:
    number = _number(value, "rate_burst")
    if not 1 <= number <= 1_000_000:
        raise Invalid("rate_burst must be from 1 to 1000000", pointer="/rate_burst")
    return int(number)


def _flag(value: object, name: str) -> bool:
    specified = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if isinstance(value, bool):
        return value
    if str(value).lower() not in specified:
        raise Invalid(f"{name} must be true or false", pointer=f"/{name}")
    return specified[str(value).lower()]


def _days(value: object) -> float:
    number = _number(value, "retention_days")
    if not 0 < number <= 36_500:
        raise Invalid("retention_days must be above 0 and at most 36500", pointer="/retention_days")
    return number


def _size(name: str) -> Callable[[object], int]:
    """Return a parser of a number of bytes."""

    def read(value: object) -> int:
        number = _number(value, name)
        if not 0 <= number <= 2**50 or number != int(number):
            raise Invalid(f"{name} must be a whole number of bytes, at most 2^50", pointer=f"/{name}")
        return int(number)

    return read


def _number(value: object, name: str) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise Invalid(f"{name} must be a number, not {value!r}", pointer=f"/{name}") from None


def _webhooks_allow(value: object) -> tuple[str, ...]:
    """Parse additional webhook destinations, as a list or comma-separated; none if empty."""
    given = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    if not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        raise Invalid("webhooks_allow must be a list of addresses or host names, with :port or without")
    return tuple(given)


def tenant_name(value: object) -> str:
    """Return a valid tenant name. An empty one, such as from an empty variable, is rejected."""
    if not isinstance(value, str) or not (1 <= len(value) <= 200 and value.isprintable() and value == value.strip()):
        raise Invalid("tenant must be 1 to 200 visible characters", pointer="/tenant")
    return value


def _text(name: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str):
            raise Invalid(f"{name} must be a text, not {value!r}", pointer=f"/{name}")
        return value

    return read


_READ: Mapping[str, Callable[[object], Any]] = {
    **{name: _text(name) for name in ("database", "host", "artifacts", "shard_supplier")},
    "tenant": tenant_name,
    "strict_types": lambda value: _flag(value, "strict_types"),
    "implicit_agents": lambda value: _flag(value, "implicit_agents"),
    "auth": _auth,
    "issuers": _tables("issuers"),
    "codeq_producers": _tables("codeq_producers"),
    "codeq_workers": _tables("codeq_workers"),
    "codeq_tenant_from_sub": lambda value: _flag(value, "codeq_tenant_from_sub"),
    "codeq_producer_as_worker": lambda value: _flag(value, "codeq_producer_as_worker"),
    "codeq_development": lambda value: _flag(value, "codeq_development"),
    "codeq_webhook_secret": _secret,
    "limits": _limits,
    "shards": _shards,
    "hosts": _hosts,
    "faces": _adapters,
    "port": _port,
    "rate_per_second": _rate,
    "rate_burst": _burst,
    "webhooks_allow": _webhooks_allow,
    "retention_days": _days,
    "artifact_bytes": _size("artifact_bytes"),
    "artifact_quota_bytes": _size("artifact_quota_bytes"),
}
