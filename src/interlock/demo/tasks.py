"""Demo tasks: agents that plan, read, write and publish."""

from __future__ import annotations

import asyncio
import os

import interlock

app = interlock.App("sqlite:///interlock.db")

READING_SECONDS = 0.3


@app.task(agent=("worker", "reader"))
async def read(source: str) -> int:
    """Read one source."""
    await asyncio.sleep(READING_SECONDS)
    return len(source)


@app.task(agent=("planner", "editor"))
async def plan(ctx: interlock.Context, topic: str) -> dict[str, int]:
    """Fan out to child jobs, wait for them without occupying a worker, and combine their results."""
    sources = await ctx.step("choose", choose, topic)
    readers = await ctx.enqueue_many(read, [{"source": source} for source in sources])
    return dict(zip(sources, await ctx.results(readers), strict=True))


def choose(topic: str) -> list[str]:
    return [f"{topic}: {part}" for part in ("causes", "history", "open questions")]


@app.task
async def report(ctx: interlock.Context, topic: str) -> dict[str, str]:
    """Lose the worker halfway; the next worker replays `gather` and only writes."""
    gathered = await ctx.step("gather", gather, topic)
    power_cut()
    return {"gathered": gathered, "written": await ctx.step("write", write, topic)}


def gather(topic: str) -> str:
    return f"notes on {topic}, by process {os.getpid()}"


def write(topic: str) -> str:
    return f"a page on {topic}, by process {os.getpid()}"


def power_cut() -> None:
    """Do nothing; `interlock.demo.crashing_worker` replaces this function."""


@app.task(limits=[{"name": "model", "cost": {"tokens": 400, "usd": 0.02}}], budgets=["demo"])
async def embed(ctx: interlock.Context, part: str) -> int:
    """Share the limit of a provider and a budget with other jobs; those that do not fit wait without a worker."""
    await asyncio.sleep(READING_SECONDS)
    ctx.usage(tokens=380, usd=0.015)
    return len(part)


@app.task
async def narrate(ctx: interlock.Context, topic: str) -> str:
    """Wait for a message, then write a stream that others follow: `interlock jobs stream ID`."""
    tone = await ctx.receive("tone", schema=str, timeout=60)
    text = ctx.stream("text")
    for word in (*tone.split(), topic, "rise", "and", "fall"):
        text.write(word + " ")
    return f"{tone} {topic} rise and fall"


@app.task
async def interview(ctx: interlock.Context) -> str:
    """Ask a person a question, and continue with the answer."""
    return await ctx.ask("Which title shall the report have?")


@app.task
async def order(ctx: interlock.Context, copies: int) -> str:
    """Call something with consequences: the intent is recorded before the call, so it is never repeated blindly."""
    return await ctx.effect("charge", charge, copies)


def charge(copies: int) -> str:
    return f"charged for {copies} copies"


@app.task
async def digest() -> str:
    """Run every minute, created by a schedule."""
    return "nothing new"


@app.task
async def publish(ctx: interlock.Context, title: str) -> dict[str, object]:
    """Request an approval, and resume after either decision."""
    answer = await ctx.approve(f"Publish “{title}”?", details={"title": title, "readers": 40_000}, on_deny="resume")
    return {"published": answer.approved, "comment": answer.comment}


@app.task
async def summarize(ctx: interlock.Context, topic: str) -> str:
    """Retry after the delay that a rate-limited provider requests."""
    if ctx.attempt == 1:
        raise interlock.Retry("429 from the model provider", delay=1.0)
    return f"{topic}, in one sentence"


@app.task(max_attempts=2, backoff={"kind": "fixed", "base_seconds": 1.0})
async def import_feed(url: str) -> None:
    """Fail every attempt and become a dead letter."""
    raise ConnectionError(f"{url} does not answer")
