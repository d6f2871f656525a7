"""Settings. Flags take precedence over the environment, and that over interlock.toml."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from interlock.errors import Invalid
from interlock.faces import check_face, installed_faces, load_face

PREFIX = "INTERLOCK_"
FILE = "interlock.toml"
OFF = "off"
CREDENTIALS = ("tokens", "jwt", "oidc")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
TRACE_ID = "{trace_id}"
_TRACE_URL = re.compile(r"https?://[A-Za-z0-9.\[:][!-~]*")
_SHARD_NAME = re.compile(r"[A-Za-z0-9_-]{1,63}")
KIB = 1024
# Range of each limit. The minimum of errors and events is the size that workers truncate them to.
LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("body", "payload", "result", "checkpoint", "step", "headers"), (KIB, 64 * KIB * KIB)),
    "event": (8 * KIB, 64 * KIB * KIB),
    "error": (16 * KIB, 64 * KIB * KIB),
    "streams": (KIB, 64 * KIB * KIB * KIB),
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
    sign_in: Mapping[str, Any] = field(default_factory=dict)
    sign_in_client_secret: str | None = None
    public_url: str | None = None
    trace_url: str | None = None
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
    face_settings: Mapping[str, Any] = field(default_factory=dict)  # those that protocol adapters add, by name


def load(
    flags: Mapping[str, Any], *, environ: Mapping[str, str] | None = None, directory: Path | None = None
) -> Settings:
    """Load the effective settings; a flag that is None was not given."""
    environ = os.environ if environ is None else environ
    path = (directory or Path.cwd()) / FILE
    values = _from_file(path)
    added = _added({*values, *flags}, environ)
    if unknown := sorted(values.keys() - _names() - added.keys()):
        raise Invalid(f"{path} has unknown settings: {', '.join(unknown)}")
    names = _names() | added.keys()
    specified = {name: value for name in names if (value := _from_environ(name, environ)) is not None}
    if flags.get("database") is not None or ("database" in specified and "shards" not in specified):
        values.pop("shards", None)  # a single database with higher precedence replaces the shards
        specified.pop("shards", None)
    values |= specified
    values |= {name: value for name, value in flags.items() if value is not None}
    parsers = {**_READ, **added}
    parsed = {name: parsers[name](value) if name in parsers else value for name, value in values.items()}
    of_faces = {name: parsed.pop(name) for name in added if name in parsed}
    settings = Settings(**parsed, face_settings=of_faces)
    if settings.shards:  # code that needs a single database uses the one with the directory
        settings = replace(settings, database=next(iter(settings.shards.values())))
    if "jwt" in settings.auth and not settings.issuers:
        raise Invalid("auth names jwt, but no issuers are set", pointer="/issuers")
    if "oidc" in settings.auth and not settings.sign_in:
        raise Invalid(
            "auth names oidc, but sign_in is not set: expected a table with issuer and client_id", pointer="/sign_in"
        )
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
    values = _from_file((directory or Path.cwd()) / FILE)
    specified = dict.fromkeys(_names(), "default") | dict.fromkeys(values, FILE)
    for name in _names() | _added({*values, *flags}, environ).keys():
        variable = PREFIX + name.upper()
        for given in (f"{variable}_FILE", variable):
            if environ.get(given) or variable in environ:
                specified[name] = given
    return specified | {name: f"--{name}" for name, value in flags.items() if value is not None}


def _names() -> set[str]:
    return {field.name for field in fields(Settings)} - {"face_settings"}


def _added(names: set[str], environ: Mapping[str, str]) -> Mapping[str, Callable[[object], Any]]:
    """Return the parsers of the settings of each installed protocol adapter that a setting or a variable is for."""
    given = {name.removeprefix(PREFIX).lower() for name in environ if name.startswith(PREFIX)} | names
    found: dict[str, Callable[[object], Any]] = {}
    if given - _names():
        for face in installed_faces():
            if any(name.startswith(f"{face}_") for name in given):
                found |= load_face(face).settings
    return found


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
    return values


def _auth(value: object) -> tuple[str, ...]:
    """Parse the accepted credentials: `off`, or names as a list or comma-separated."""
    given = [word.strip() for word in value.split(",")] if isinstance(value, str) else value
    if given == [OFF]:
        return ()
    if not isinstance(given, list) or not given or not all(word in CREDENTIALS for word in given):
        raise Invalid(f"auth must be {OFF}, or a list of {', '.join(CREDENTIALS)}", pointer="/auth")
    return tuple(dict.fromkeys(given))


def tables(name: str, value: object) -> tuple[Mapping[str, Any], ...]:
    """Parse TOML tables, or a JSON list of objects."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Invalid(f"{name} cannot be read as JSON: {error}", pointer=f"/{name}") from None
    if not isinstance(given, list) or not all(isinstance(table, Mapping) for table in given):
        raise Invalid(f"{name} must be a list of tables", pointer=f"/{name}")
    return tuple(given)


def _sign_in(value: object) -> Mapping[str, Any]:
    """Parse the identity provider of the dashboard: a TOML table, or a JSON object."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Invalid(f"sign_in cannot be read as JSON: {error}", pointer="/sign_in") from None
    if not isinstance(given, Mapping):
        raise Invalid("sign_in must be a table", pointer="/sign_in")
    return dict(given)


def _public_url(value: object) -> str:
    """Parse the origin at which browsers reach the server."""
    text = value.removesuffix("/") if isinstance(value, str) else ""
    if not _ORIGIN.fullmatch(text):
        expected = "expected an address such as https://jobs.example.com, without a path"
        raise Invalid(f"public_url is {value!r}: {expected}", pointer="/public_url")
    return text


def _trace_url(value: object) -> str:
    """Parse the address of a trace in a tracing system, with a place for its ID."""
    text = value if isinstance(value, str) else ""
    if not _TRACE_URL.fullmatch(text) or text.count(TRACE_ID) != 1:
        expected = f"expected an address such as https://tempo.example.com/trace/{TRACE_ID}"
        raise Invalid(f"trace_url is {value!r}: {expected}", pointer="/trace_url")
    return text


def secret(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Invalid(f"{name} must be a text that is not empty", pointer=f"/{name}")
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


def _faces(value: object) -> tuple[str, ...]:
    """Parse the protocol adapters to serve, as a list or comma-separated; none if empty."""
    given = [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(word, str) for word in given):
        raise Invalid("faces must be a list of names", pointer="/faces")
    for name in given:
        check_face(name)
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


def flag(name: str, value: object) -> bool:
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
    "strict_types": partial(flag, "strict_types"),
    "implicit_agents": partial(flag, "implicit_agents"),
    "auth": _auth,
    "issuers": partial(tables, "issuers"),
    "sign_in": _sign_in,
    "sign_in_client_secret": partial(secret, "sign_in_client_secret"),
    "public_url": _public_url,
    "trace_url": _trace_url,
    "limits": _limits,
    "shards": _shards,
    "hosts": _hosts,
    "faces": _faces,
    "port": _port,
    "rate_per_second": _rate,
    "rate_burst": _burst,
    "webhooks_allow": _webhooks_allow,
    "retention_days": _days,
    "artifact_bytes": _size("artifact_bytes"),
    "artifact_quota_bytes": _size("artifact_quota_bytes"),
}
