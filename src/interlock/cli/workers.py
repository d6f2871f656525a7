"""`interlock workers`: workers, what they accept, and what they run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.runner import Anywhere, run
from interlock.domain.policy import ClaimFilter, Names
from interlock.domain.principal import Principal
from interlock.domain.worker_presence import Presence
from interlock.engine.engine import Engine
from interlock.wire import encode

app = App(name="workers", help="List workers and the jobs they run.")
NOTHING = Anywhere()


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    after: Annotated[str, Parameter(help="only workers after this name, to page on")] = "",
    common: Anywhere = NOTHING,
) -> None:
    """List workers by name: what they accept, when they last polled, and how many jobs they run."""

    async def command(engine: Engine, who: Principal) -> list[Presence]:
        return await engine.workers.seen(who.tenant, after=after, limit=limit)

    workers = run(common, command)
    if common.json:
        output.print_json({"items": [encode.worker_to_dict(worker) for worker in workers]})
    elif not workers:
        output.print_line("no workers")
    else:
        columns = ("worker", "last polled", "running", "types", "capabilities", "repositories", "affinity keys")
        output.table(columns, [row for worker in workers for row in _rows(worker)])


def _rows(worker: Presence) -> list[tuple[object, ...]]:
    """Return one row for each claim filter of a worker; only the first row has its name."""
    asked = "never" if worker.last_seen_at is None else wire.when(worker.last_seen_at)[:19] + "Z"
    takes: list[tuple[str, ...]] = [_takes(ask) for ask in worker.asks] or [()]
    return [(worker.name, asked, worker.running, *takes[0])] + [("", "", "", *more) for more in takes[1:]]


def _takes(ask: ClaimFilter) -> tuple[str, ...]:
    return _names(ask.types), _names(ask.capabilities), _names(ask.repositories), _names(ask.affinity_keys)


def _names(names: Names | None) -> str:
    return "any" if names is None else ", ".join(sorted(names)) or "none"
