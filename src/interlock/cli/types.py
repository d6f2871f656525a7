"""`interlock types`: list, show, set, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli.runner import ANYWHERE, Anywhere, run
from interlock.client.port import Client
from interlock.domain.registry import JobType
from interlock.errors import Invalid
from interlock.wire.encode import defaults_to_dict, type_to_dict

app = App(name="types", help="Manage registered types: payload schema, required capabilities, defaults.")


@app.default
@app.command(name="list")
def list_(*, common: Anywhere = ANYWHERE) -> None:
    """List registered types."""
    common.show_list(
        "types",
        run(common, lambda client: client.types.list()),
        type_to_dict,
        ("type", "schema", "requires", "defaults"),
        lambda t: (t.name, "yes" if t.schema else "", ", ".join(t.requires), ", ".join(defaults_to_dict(t.defaults))),
    )


@app.command
def show(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Show one registered type."""
    common.show_facts(type_to_dict(run(common, lambda client: client.types.get(name))))


@app.command(name="set")
def set_(
    name: str,
    *,
    schema: Annotated[str | None, Parameter(help="JSON text, @FILE, or - for standard input")] = None,
    requires: Annotated[tuple[str, ...], Parameter(help="capability a worker must have; may be repeated")] = (),
    defaults: Annotated[str | None, Parameter(help="JSON: max_attempts, priority, timeout_seconds, backoff …")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or update a type. New payloads must be valid against its schema."""

    async def command(client: Client) -> JobType:
        values: dict[str, Any] = {} if defaults is None else wire.json_object(defaults, what="defaults")
        text = None if schema is None else _text(schema)
        return await client.types.set(name, schema=text, requires=requires, defaults=values)

    type = run(common, command)
    common.show(type_to_dict(type), f"{type.name}: registered")


@app.command
def delete(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a registered type. Its jobs remain; payloads are no longer validated."""
    run(common, lambda client: client.types.delete(name))
    common.show({"deleted": name}, f"{name}: deleted")


def _text(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {value[1:]}: {error}", pointer="/schema") from error
