"""Workers: who asks for what, when they were last seen, and what each is doing."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.pages.overview import known_jobs
from interlock.dashboard.web import Ask, Pages, Reply, View, show

pages = Pages()

AT_ONCE: Final = 50


@pages.get("/workers")
async def workers(ask: Ask) -> View | Reply:
    """List workers by name."""
    found = await ask.engine.workers.seen(ask.tenant, after=ask.query.one("after") or "", limit=AT_ONCE + 1)
    shown = found[:AT_ONCE]
    turns = ask.query.turns("after", next={"after": shown[-1].name} if len(found) > AT_ONCE else None)
    jobs = await known_jobs(ask, [id for worker in shown for id in worker.job_ids[:5]])
    return show("workers.html", workers=shown, jobs=jobs, turns=turns)
