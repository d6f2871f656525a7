"""A web service: requests enqueue jobs, follow their output, and decide what waits for approval."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Literal

from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel

import interlock

jobs = interlock.App()


class Order(BaseModel):
    """A refund that a customer asks for."""

    number: int
    amount: float


@jobs.task(max_attempts=5)
async def refund(ctx: interlock.Context, order: Order) -> str:
    """Refund an order; amounts above 100 need an approval."""
    await ctx.step("check", check, order)
    if order.amount > 100:
        decision = await ctx.approve(f"Refund {order.amount:.2f} for order {order.number}?", on_deny="resume")
        if decision.denied:
            return "denied"
    receipt = await ctx.step("pay", pay, ctx.id, order)
    ctx.stream("log").write(f"paid: {receipt}\n")
    return receipt


async def check(order: Order) -> None:
    """Check the order. A step writes to a stream once; the task runs again after the approval."""
    interlock.current().stream("log").write(f"checking order {order.number}\n")


async def pay(key: str, order: Order) -> str:
    """Pay. Replace the body with a call of your payment service, and pass it the key against repeats."""
    return f"receipt-{order.number}"


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None]:
    async with jobs:
        yield


api = FastAPI(lifespan=lifespan)


@api.exception_handler(interlock.errors.NotFound)
async def not_found(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"detail": str(error)}, 404)


@api.post("/refunds", status_code=202)
async def create(order: Order) -> dict[str, str]:
    """Enqueue a job. A customer who asks twice gets the same job, because the key is the same."""
    job = await refund.options(idempotency_key=f"refund-{order.number}").enqueue(order)
    return {"id": job.id}


@api.get("/refunds/{id}")
async def read(id: str) -> dict[str, object]:
    job = await jobs.jobs.get(id)
    return {"status": job.status, "result": job.result, "approval": job.approval_id}


@api.get("/refunds/{id}/log")
async def follow(id: str, after: int = -1) -> StreamingResponse:
    """Stream what the job writes until it ends; a client that lost its connection passes `after`."""
    job = jobs.job(id)
    await job.refresh()  # 404 before the first byte

    async def lines() -> AsyncIterator[str]:
        async for chunk in job.stream("log", after=after):
            yield chunk.text or ""

    return StreamingResponse(lines(), media_type="text/plain")


@api.post("/refunds/{id}/decision")
async def decide(id: str, decision: Annotated[Literal["approve", "deny"], Body(embed=True)]) -> dict[str, str]:
    """Decide what the job waits for. In production, only after you know who calls."""
    job = await jobs.jobs.get(id)
    if job.approval_id is None:
        raise HTTPException(409, "the refund does not wait for a decision")
    await jobs.approvals.decide(job.approval_id, decision)
    return {"decision": decision}
