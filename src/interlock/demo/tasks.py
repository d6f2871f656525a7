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
