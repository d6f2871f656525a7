"""`interlock types`: list, show, set, delete."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.runner import Anywhere, run
from interlock.domain.principal import Principal
from interlock.domain.registry import JobType
from interlock.engine.engine import Engine
from interlock.errors import Invalid
from interlock.wire import encode

app = App(name="types", help="Manage registered types: payload schema, required capabilities, defaults.")
NOTHING = Anywhere()


@app.default
@app.command(name="list")
def list_(*, common: Anywhere = NOTHING) -> None:
    """List registered types."""

    async def command(engine: Engine, who: Principal) -> list[JobType]:
        return await engine.registry.types(who.tenant)

    types = run(common, command)
    if common.json:
        output.print_json({"items": [encode.type_to_dict(type) for type in types]})
    elif not types:
        output.print_line("no types")
    else:
        output.table(
            ("type", "schema", "requires", "defaults"),
            [
                (
                    t.name,
                    "yes" if t.schema else "",
                    ", ".join(t.requires),
                    ", ".join(encode.defaults_to_dict(t.defaults)),
                )
                for t in types
            ],
        )


@app.command
def show(name: str, *, common: Anywhere = NOTHING) -> None:
    """Show one registered type."""

    async def command(engine: Engine, who: Principal) -> JobType:
        return await engine.registry.type(who.tenant, name)

    found = encode.type_to_dict(run(common, command))
    if common.json:
        output.print_json(found)
    else:
        output.facts(found)


@app.command(name="set")
def set_(
    name: str,
    *,
    schema: Annotated[str | None, Parameter(help="JSON text, @FILE, or - for standard input")] = None,
    requires: Annotated[tuple[str, ...], Parameter(help="capability a worker must have; may be repeated")] = (),
    defaults: Annotated[str | None, Parameter(help="JSON: max_attempts, priority, timeout_seconds, backoff …")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Create or update a type. New payloads must be valid against its schema."""

    async def command(engine: Engine, who: Principal) -> JobType:
        values: dict[str, Any] = {} if defaults is None else wire.json_object(defaults, what="defaults")
        text = None if schema is None else _text(schema)
        return await engine.registry.set_type(who, name, schema=text, requires=requires, defaults=values)

    type = run(common, command)
    if common.json:
        output.print_json(encode.type_to_dict(type))
    else:
        output.print_line(f"{type.name}: registered")


@app.command
def delete(name: str, *, common: Anywhere = NOTHING) -> None:
    """Delete a registered type. Its jobs stay; payloads are no longer validated."""

    async def command(engine: Engine, who: Principal) -> None:
        await engine.registry.delete_type(who, name)

    run(common, command)
    if common.json:
        output.print_json({"deleted": name})
    else:
        output.print_line(f"{name}: deleted")


def _text(value: str) -> str:
    if value == "-":
        return sys.stdin.read()
    if not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {value[1:]}: {error}", pointer="/schema") from error
