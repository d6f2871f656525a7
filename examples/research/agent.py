"""A research agent: it plans, reads in parallel, asks, writes, waits for approval and publishes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from model import Answer, FakeModel, Model

import interlock

app = interlock.App()  # the database of the settings: a SQLite file, unless INTERLOCK_DATABASE names another
model: Model = FakeModel()  # or RealModel(), with OPENAI_API_KEY
PUBLISHED = Path("published")
MODEL = {"name": "model", "cost": {"tokens": 500}}  # a claim reserves this much of the quota


@dataclass
class Reader:
    """For whom the report is: the answer to a question."""

    name: str
    words: int = 300


@dataclass
class Report:
    """The result of the job."""

    topic: str
    published: str | None
    notes: int
    comment: str | None = None


@app.task(agent=("worker", "reader"), limits=[MODEL], max_attempts=5)
async def read(ctx: interlock.Context, part: str) -> str:
    """Read about one part of the topic, within the quota that all readers share."""
    answer = await ctx.step("read", ask, f"read: {part}")
    ctx.usage(tokens=answer.tokens)
    return answer.text


@app.task(
    agent=("planner", "editor"),
    max_attempts=5,
    schedule=interlock.Cron("0 7 * * 1-5", timezone="Europe/Berlin", overlap="skip"),
)
async def research(ctx: interlock.Context, topic: str = "tides") -> Report:
    """Write a report about a topic. Each finished step is saved: whatever is killed, no step is repeated."""
    plan = await ctx.step("plan", ask, f"plan: {topic}")
    readers = await ctx.enqueue_many(read, [{"part": part} for part in plan.text.splitlines()])
    notes = await ctx.results(readers)  # the job waits for its children without a worker

    try:
        reader = await ctx.ask("Who is the report for?", schema=Reader, name="reader", details={"notes": notes})
    except interlock.Declined as declined:
        return Report(topic, None, len(notes), declined.comment)

    text = await ctx.step("write", write, reader, notes)
    decision = await ctx.approve(
        f"Publish the report about {topic}?", name="review", details={"text": text}, on_deny="resume"
    )
    if decision.denied:
        return Report(topic, None, len(notes), decision.comment)
    page = await ctx.effect("publish", publish, ctx.id, text, verify=published)
    return Report(topic, page, len(notes), decision.comment)


async def ask(prompt: str) -> Answer:
    return await model.ask(prompt)


async def write(reader: Reader, notes: list[str]) -> str:
    """Write the report, and stream it to those who follow the job."""
    written = interlock.current().stream("report")
    text = f"For {reader.name}, in {reader.words} words:\n\n" + "".join(f"- {note}\n" for note in notes)
    for line in text.splitlines(keepends=True):
        written.write(line)
    return text


def publish(name: str, text: str) -> str:
    """Publish the report. The effect records the intent before this call and the page after it."""
    PUBLISHED.mkdir(exist_ok=True)
    page = PUBLISHED / f"{name}.md"
    page.write_text(text)
    return str(page)


def published(name: str, text: str) -> str | None:
    """Return the page if it was published, for a worker that finds an intent without an outcome."""
    page = PUBLISHED / f"{name}.md"
    return str(page) if page.exists() and page.read_text() == text else None


async def main(topic: str) -> None:
    async with app:
        job = await research.enqueue(topic)
        print(job.id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["tides"]))
