"""`interlock queues`: list, show, pause, resume."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run, timed
from interlock.domain.registry import QueueStats
from interlock.wire.encode import stats_to_dict

app = App(name="queues", help="Count jobs by type; pause and resume types.")
COUNTS = ("ready", "delayed", "blocked", "in_progress", "waiting_for_approval", "dead_letter")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only types after this one, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List queues by type, with job counts."""
    stats, now = timed(common, lambda client: client.queues.list(after=after, limit=limit))
    common.show_list(
        "queues",
        stats,
        lambda s: stats_to_dict(s, now=now),
        ("type", *COUNTS, "oldest ready", "paused by"),
        lambda s: (s.type, *(getattr(s, name) for name in COUNTS), _age(s, now), s.paused_by or ""),
    )


@app.command
def show(type: str, *, common: Anywhere = ANYWHERE) -> None:
    """Print the counts of one type."""
    stats, now = timed(common, lambda client: client.queues.get(type))
    common.show_facts(stats_to_dict(stats, now=now))


@app.command
def pause(
    type: str,
    *,
    reason: Annotated[str | None, Parameter(help="reason, shown with the queue and by `jobs why`")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Stop leasing jobs of this type; running jobs continue."""
    run(common, lambda client: client.queues.pause(type, reason=reason))
    common.show({"type": type, "paused": True}, f"{type}: paused")


@app.command
def resume(type: str, *, common: Anywhere = ANYWHERE) -> None:
    """Lease jobs of this type again."""
    run(common, lambda client: client.queues.resume(type))
    common.show({"type": type, "paused": False}, f"{type}: resumed")


def _age(stats: QueueStats, now: int) -> str:
    return "" if stats.oldest_ready_at is None else f"{max(now - stats.oldest_ready_at, 0) / 1_000_000:.0f} s"
