"""`interlock queues`: list, show, pause, resume."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.runner import Anywhere, run
from interlock.domain.principal import Principal
from interlock.domain.registry import QueueStats
from interlock.engine.engine import Engine
from interlock.wire import encode

app = App(name="queues", help="Count jobs by type; pause and resume types.")
NOTHING = Anywhere()
COUNTS = ("ready", "delayed", "blocked", "in_progress", "waiting_for_approval", "dead_letter")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Annotated[int, Parameter(help="1 to 200")] = 50,
    after: Annotated[str, Parameter(help="list only types after this one, to continue a list")] = "",
    common: Anywhere = NOTHING,
) -> None:
    """List queues by type, with job counts."""

    async def command(engine: Engine, who: Principal) -> tuple[list[QueueStats], int]:
        return await engine.queries.queues(who.tenant, after=after, limit=limit), await engine.queries.now()

    stats, now = run(common, command)
    if common.json:
        output.print_json({"items": [encode.stats_to_dict(s, now=now) for s in stats]})
    elif not stats:
        output.print_line("no queues")
    else:
        output.table(
            ("type", *COUNTS, "oldest ready", "paused by"),
            [(s.type, *(getattr(s, name) for name in COUNTS), _age(s, now), s.paused_by or "") for s in stats],
        )


@app.command
def show(type: str, *, common: Anywhere = NOTHING) -> None:
    """Print the counts of one type."""

    async def command(engine: Engine, who: Principal) -> tuple[QueueStats, int]:
        return await engine.queries.queue(who.tenant, type), await engine.queries.now()

    stats, now = run(common, command)
    found = encode.stats_to_dict(stats, now=now)
    if common.json:
        output.print_json(found)
    else:
        output.facts(found)


@app.command
def pause(
    type: str,
    *,
    reason: Annotated[str | None, Parameter(help="reason, shown with the queue and by `jobs why`")] = None,
    common: Anywhere = NOTHING,
) -> None:
    """Stop leasing jobs of this type; running jobs continue."""

    async def command(engine: Engine, who: Principal) -> None:
        await engine.jobs.pause(who, type, reason=reason)

    run(common, command)
    _print_result(common, type, "paused")


@app.command
def resume(type: str, *, common: Anywhere = NOTHING) -> None:
    """Lease jobs of this type again."""

    async def command(engine: Engine, who: Principal) -> None:
        await engine.jobs.resume(who, type)

    run(common, command)
    _print_result(common, type, "resumed")


def _print_result(common: Anywhere, type: str, what: str) -> None:
    encode: dict[str, Any] = {"type": type, "paused": what == "paused"}
    if common.json:
        output.print_json(encode)
    else:
        output.print_line(f"{type}: {what}")


def _age(stats: QueueStats, now: int) -> str:
    return "" if stats.oldest_ready_at is None else f"{max(now - stats.oldest_ready_at, 0) / 1_000_000:.0f} s"
