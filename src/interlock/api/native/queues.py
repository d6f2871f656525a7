"""Queues: the jobs of one type, paused and resumed."""

from __future__ import annotations

from interlock.api.native.jobs import Reason
from interlock.api.routes import Answer, Call, Nothing, Routes

routes = Routes()


@routes.add(
    "POST", "/v1/queues/{type}/pause", roles=["operate"], body=Reason, body_optional=True, answers={204: None}
)  # fmt: skip
async def pause_queue(call: Call[Reason, Nothing]) -> Answer:
    """Hand out no more jobs of a type."""
    await call.engine.jobs.pause(call.who, call.path["type"], reason=call.body.reason)
    return Answer(204, media_type="")


@routes.add(
    "POST", "/v1/queues/{type}/resume", roles=["operate"], body=Nothing, body_optional=True, answers={204: None}
)
async def resume_queue(call: Call[Nothing, Nothing]) -> Answer:
    """Hand out jobs of a type again."""
    await call.engine.jobs.resume(call.who, call.path["type"])
    return Answer(204, media_type="")
