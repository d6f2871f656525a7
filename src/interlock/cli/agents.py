"""`interlock agents`: list, set, delete."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.domain.registry import Agent
from interlock.wire.encode import agent_to_dict

app = App(name="agents", help="Manage agents: the entities that jobs run for, and their concurrency limits.")


@app.default
@app.command(name="list")
def list_(
    *,
    after: Annotated[str | None, Parameter(help="only agents after this KIND/ID, to page on")] = None,
    limit: Limit = 50,
    common: Anywhere = ANYWHERE,
) -> None:
    """List agents by kind and ID."""
    kind, _, id = (after or "").partition("/")
    agents = run(common, lambda client: client.agents.list(after=(kind, id), limit=limit))

    def row(a: Agent) -> tuple[object, ...]:
        strict, created_by = "yes" if a.strict else "no", "job" if a.implicit else ""
        return f"{a.kind}/{a.id}", a.max_concurrency or "any", strict, created_by

    common.show_list("agents", agents, agent_to_dict, ("agent", "max concurrency", "strict", "created by"), row)


@app.command(name="set")
def set_(
    kind: str,
    id: str,
    *,
    max_concurrency: Annotated[int | None, Parameter(help="maximum number of active jobs; default: no limit")] = None,
    strict: Annotated[bool, Parameter(help="a started job keeps its concurrency slot while it waits")] = False,
    defaults: Annotated[str | None, Parameter(help="JSON: max_attempts, priority, timeout_seconds, backoff …")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or update an agent. A lower limit takes effect as running jobs finish."""
    values: dict[str, Any] = {} if defaults is None else wire.json_object(defaults, what="defaults")
    agent = run(
        common,
        lambda client: client.agents.set(kind, id, max_concurrency=max_concurrency, strict=strict, defaults=values),
    )
    limit = "no concurrency limit" if agent.max_concurrency is None else f"max concurrency {agent.max_concurrency}"
    common.show(agent_to_dict(agent), f"{agent.kind}/{agent.id}: {limit}")


@app.command
def delete(kind: str, id: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete an agent that has no unfinished jobs."""
    run(common, lambda client: client.agents.delete(kind, id))
    common.show({"deleted": f"{kind}/{id}"}, f"{kind}/{id}: deleted")
