"""`interlock agents`: list, set, delete."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.runner import Anywhere, run
from interlock.domain.principal import Principal
from interlock.domain.registry import Agent
from interlock.engine.engine import Engine
from interlock.wire import encode

app = App(name="agents", help="Manage agents: the entities that jobs run for, and their concurrency limits.")
NOTHING = Anywhere()


@app.default
@app.command(name="list")
def list_(
    *,
    after: Annotated[str | None, Parameter(help="only agents after this KIND/ID, to page on")] = None,
    limit: int = 50,
    common: Anywhere = NOTHING,
) -> None:
    """List agents by kind and ID."""

    async def command(engine: Engine, who: Principal) -> list[Agent]:
        kind, _, id = (after or "").partition("/")
        return await engine.registry.agents(who.tenant, after=(kind, id), limit=limit)

    agents = run(common, command)
    if common.json:
        output.print_json({"items": [encode.agent_to_dict(agent) for agent in agents]})
    elif not agents:
        output.print_line("no agents")
    else:
        output.table(
            ("agent", "max concurrency", "strict", "created by"),
            [
                (
                    f"{a.kind}/{a.id}",
                    a.max_concurrency or "any",
                    "yes" if a.strict else "no",
                    "job" if a.implicit else "",
                )
                for a in agents
            ],
        )


@app.command(name="set")
def set_(
    kind: str,
    id: str,
    *,
    max_concurrency: Annotated[int | None, Parameter(help="maximum number of active jobs; default: no limit")] = None,
    strict: Annotated[bool, Parameter(help="a started job keeps its concurrency slot while it waits")] = False,
    defaults: Annotated[str | None, Parameter(help="JSON: max_attempts, priority, timeout_seconds, backoff …")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Create or update an agent. A lower limit takes effect as running jobs finish."""
    values: dict[str, Any] = {} if defaults is None else wire.json_object(defaults, what="defaults")

    async def command(engine: Engine, who: Principal) -> Agent:
        return await engine.registry.set_agent(
            who, kind, id, max_concurrency=max_concurrency, strict=strict, defaults=values
        )

    agent = run(common, command)
    if common.json:
        output.print_json(encode.agent_to_dict(agent))
    else:
        limit = "no concurrency limit" if agent.max_concurrency is None else f"max concurrency {agent.max_concurrency}"
        output.print_line(f"{agent.kind}/{agent.id}: {limit}")


@app.command
def delete(kind: str, id: str, *, common: Anywhere = NOTHING) -> None:
    """Delete an agent that has no unfinished jobs."""

    async def command(engine: Engine, who: Principal) -> None:
        await engine.registry.delete_agent(who, kind, id)

    run(common, command)
    if common.json:
        output.print_json({"deleted": f"{kind}/{id}"})
    else:
        output.print_line(f"{kind}/{id}: deleted")
