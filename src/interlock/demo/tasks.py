"""Agents that plan, read, write and publish; written as any app would be."""

from __future__ import annotations

import asyncio
import os

import interlock

app = interlock.App("sqlite:///interlock.db")

READING_SECONDS = 0.3


@app.task(agent=("worker", "reader"))
async def read(source: str) -> int:
    """One source, read by one of many workers."""
    await asyncio.sleep(READING_SECONDS)
    return len(source)


@app.task(agent=("planner", "editor"))
async def plan(ctx: interlock.Context, topic: str) -> dict[str, int]:
    """Fan out to workers, wait for all of them without taking up a worker, and put together what they found."""
    sources = await ctx.step("choose", choose, topic)
    readers = await ctx.enqueue_many(read, [{"source": source} for source in sources])
    return dict(zip(sources, await ctx.results(readers), strict=True))


def choose(topic: str) -> list[str]:
    return [f"{topic}: {part}" for part in ("causes", "history", "open questions")]


@app.task
async def report(ctx: interlock.Context, topic: str) -> dict[str, str]:
    """Loses its worker halfway; the next one finds what was gathered and only writes."""
    gathered = await ctx.step("gather", gather, topic)
    power_cut()
    return {"gathered": gathered, "written": await ctx.step("write", write, topic)}


def gather(topic: str) -> str:
    return f"notes on {topic}, by process {os.getpid()}"


def write(topic: str) -> str:
    return f"a page on {topic}, by process {os.getpid()}"


def power_cut() -> None:
    """Nothing, save in the worker that `interlock.demo.crashing_worker` starts."""


@app.task
async def publish(ctx: interlock.Context, title: str) -> dict[str, object]:
    """Asks a person first, and goes on either way."""
    answer = await ctx.approve(f"Publish “{title}”?", details={"title": title, "readers": 40_000}, on_deny="resume")
    return {"published": answer.approved, "comment": answer.comment}


@app.task
async def summarize(ctx: interlock.Context, topic: str) -> str:
    """Meets a provider that is busy at first and says when to come back."""
    if ctx.attempt == 1:
        raise interlock.Retry("429 from the model provider", delay=1.0)
    return f"{topic}, in one sentence"


@app.task(max_attempts=2, backoff={"kind": "fixed", "base_seconds": 1.0})
async def import_feed(url: str) -> None:
    """Fails however often it is tried, and ends among the dead letters."""
    raise ConnectionError(f"{url} does not answer")
