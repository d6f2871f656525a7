"""The `interlock` command."""

from __future__ import annotations

import sys
from typing import Any

import cyclopts
from cyclopts import App

import interlock
from interlock import assemble
from interlock.cli import agents, approvals, audit, jobs, output, queues, types, worker
from interlock.cli.session import FAILED, USAGE, Common, guard, run
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine

app = App(
    name="interlock",
    help="A durable job queue for AI agents, on SQLite or PostgreSQL.",
    version=interlock.__version__,
)
app.command(jobs.app)
app.command(approvals.app)
app.command(agents.app)
app.command(types.app)
app.command(queues.app)
app.command(audit.app)
app.command("interlock.cli.serve:app", name="serve")  # by name: a web server takes its time to be loaded
app.command(worker.app)
NOTHING = Common()


@app.command
def migrate(*, common: Common = NOTHING) -> None:
    """Bring the database up to date. On PostgreSQL, connect as the owner of the schema."""
    url = common.settings.database
    applied = guard(common, lambda: assemble.migrate(url))
    if common.json:
        output.as_json({"applied": applied})
    else:
        output.say("applied " + ", ".join(applied) if applied else "nothing to do, the schema is up to date")


@app.command
def doctor(*, common: Common = NOTHING) -> None:
    """Check versions, durability, schema and clock. Exit code 1 if something is wrong."""

    async def command(engine: Engine, who: Principal) -> dict[str, Any]:
        return await engine.store.facts()

    facts = run(common, command)
    wrong = [
        f"{name} is {facts[name]}, not {right}" for name, right in _RIGHT.items() if facts.get(name, right) != right
    ]
    if common.json:
        output.as_json({"interlock": interlock.__version__, **facts, "wrong": wrong})
    else:
        output.facts({"interlock": interlock.__version__, **facts})
        output.say("everything is in order" if not wrong else "WRONG: " + "; ".join(wrong))
    if wrong:
        sys.exit(FAILED)


_RIGHT = {
    "journal_mode": "wal",
    "synchronous": "full",
    "integrity": "ok",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
}


def main() -> None:
    """Run the command line; a usage error is exit code 2."""
    try:
        app(exit_on_error=False, print_error=True)
    except cyclopts.CycloptsError:
        sys.exit(USAGE)


if __name__ == "__main__":
    main()
