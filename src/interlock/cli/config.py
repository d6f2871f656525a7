"""`interlock config`: show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from cyclopts import App

from interlock import config
from interlock.cli import output
from interlock.cli.runner import COMMON, Common, guard

app = App(name="config", help="Print the settings.")
MASK: Final = "***"

# Names of secret values in a URL or in a key of an issuer.
SECRET: Final = frozenset(
    {"password", "passwd", "passfile", "sslpassword", "secret", "client_secret", "token", "access_key", "secret_key"}
    | {"k", "d", "p", "q", "dp", "dq", "qi", "oth"}
)


@app.command
def show(*, common: Common = COMMON) -> None:
    """Print all settings and their sources; secrets are masked."""
    flags = {"database": common.database, "tenant": common.tenant}

    async def command() -> dict[str, tuple[Any, str]]:
        values, given = asdict(config.load(flags)), config.sources(flags)
        values |= values.pop("face_settings")
        values["auth"] = values["auth"] or config.OFF
        return {name: (value, given[name]) for name, value in masked(values).items()}

    settings = guard(common, command)
    if common.json:
        output.print_json({name: {"value": value, "source": source} for name, (value, source) in settings.items()})
    else:
        output.table(
            ("setting", "value", "source"),
            ((name, _setting_text(value), source) for name, (value, source) in settings.items()),
        )


def masked(value: Any) -> Any:
    """Return a value with all secrets in it masked, at any depth."""
    if isinstance(value, str):
        return _masked_url(value) if "://" in value else value
    if isinstance(value, Mapping):
        return {
            name: MASK if inner is not None and _is_secret(str(name).lower()) else masked(inner)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [masked(inner) for inner in value]
    return value


def _is_secret(name: str) -> bool:
    return name in SECRET or name.endswith("_secret")


def _masked_url(url: str) -> str:
    try:
        scheme, place, path, query, fragment = urlsplit(url)
    except ValueError:
        return MASK
    user, at, host = place.rpartition("@")
    name, colon, _ = user.partition(":")
    options = [
        (key, MASK if key.lower() in SECRET else value) for key, value in parse_qsl(query, keep_blank_values=True)
    ]
    encoded = f"{scheme}://{name}{colon}{MASK if colon else ''}{at}{host}{path}"
    encoded += f"?{urlencode(options, quote_via=quote, safe='/*')}" if options else ""
    return encoded + (f"#{fragment}" if fragment else "")


def _setting_text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    return "" if value is None else str(value)
