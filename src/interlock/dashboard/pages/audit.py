"""Audit: the chains of history recomputed, and handed out to be kept elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from interlock import wire
from interlock.dashboard.web import Ask, Pages, Reply, View, download, show

pages = Pages()

JOBS_AT_ONCE: Final = 2_000


@pages.get("/audit", roles=["admin"])
async def audit(ask: Ask) -> View | Reply:
    """Verify some chains when asked to, and show how far it is."""
    part = None
    if ask.query.one("verify") is not None:
        after = ask.query.one("after")
        place = None if after is None else wire.job_id(after)
        part = await ask.engine.audit.verify_part(ask.tenant, after=place, jobs=JOBS_AT_ONCE)
    return show("audit.html", part=part, before=ask.query.whole("jobs") or 0)


@pages.get("/audit/export", roles=["admin"])
async def export(ask: Ask) -> View | Reply:
    """Hand out every history as lines of JSON."""
    return download(f"interlock-history-{ask.now}.jsonl", stream=_lines(ask))


async def _lines(ask: Ask) -> AsyncIterator[bytes]:
    async for page in ask.engine.audit.export(ask.tenant):
        for chronicle in page:
            for row in chronicle.rows:
                yield msgspec.json.encode({"job_id": row.job_id, **wire.history_to_dict(row)}) + b"\n"
