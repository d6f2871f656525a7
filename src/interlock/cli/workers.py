"""`interlock workers`: workers, what they accept, and what they run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock import wire
from interlock.cli import output
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.domain.policy import Names
from interlock.domain.worker_presence import Presence
from interlock.wire.encode import worker_to_dict

app = App(name="workers", help="List workers and the jobs they run.")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="only workers after this name, to page on")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List workers by name: what they accept, when they last polled, and how many jobs they run."""
    workers = run(common, lambda client: client.workers.list(after=after, limit=limit))
    if common.json:
        output.print_json({"items": [worker_to_dict(worker) for worker in workers]})
    elif not workers:
        output.print_line("no workers")
    else:
        columns = ("worker", "last polled", "running", "types", "capabilities", "repositories", "affinity keys")
        output.table(columns, [row for worker in workers for row in _rows(worker)])


def _rows(worker: Presence) -> list[tuple[object, ...]]:
    """Return one row for each claim filter of a worker; only the first row has its name."""
    asked = "never" if worker.last_seen_at is None else wire.when(worker.last_seen_at)[:19] + "Z"
    takes = [
        tuple(map(_names, (ask.types, ask.capabilities, ask.repositories, ask.affinity_keys))) for ask in worker.asks
    ] or [()]
    return [(worker.name, asked, worker.running, *takes[0])] + [("", "", "", *more) for more in takes[1:]]


def _names(names: Names | None) -> str:
    return "any" if names is None else ", ".join(sorted(names)) or "none"
