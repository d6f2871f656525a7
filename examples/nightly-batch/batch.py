"""A nightly batch: a schedule starts it, a budget bounds what it spends, a limit bounds how many jobs run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import interlock

app = interlock.App()
INBOX = Path(__file__).parent / "inbox"
MODEL = app.limit("model", concurrency=2, rate={"usd": 5}, per=3600)
NIGHTLY = app.budget("nightly", {"usd": 0.12}, per="day", timezone="Europe/Berlin")


@dataclass
class Summary:
    """What the model returned for one document, and what that cost."""

    text: str
    usd: float


@dataclass
class Night:
    """The result of one night."""

    summaries: dict[str, str]
    failed: list[str]


async def ask_model(text: str) -> Summary:
    """Summarize a text. Replace the body with a call of a model; a 429 becomes `raise interlock.RateLimited(…)`."""
    words = text.split()
    if not words:
        raise ValueError("the document is empty")
    return Summary(" ".join(words[:6]) + " …", usd=0.001 * len(words))


# The cost is what one summary costs, at most.
@app.task(limits=[{"name": MODEL, "cost": {"usd": 0.05}}], budgets=[NIGHTLY], max_attempts=3, fail_on=ValueError)
async def summarize(ctx: interlock.Context, document: str) -> str:
    """Summarize one document. A claim reserves the cost in the budget; the usage replaces it."""
    text = await asyncio.to_thread((INBOX / document).read_text)
    summary = await ctx.step("summarize", ask_model, text)
    ctx.usage(usd=summary.usd)
    return summary.text


@app.task(schedule=interlock.Cron("0 2 * * *", timezone="Europe/Berlin", overlap="skip", catch_up="last"))
async def nightly(ctx: interlock.Context) -> Night:
    """Summarize all documents, each as a job of its own, and report those that failed."""
    documents = await ctx.step("list", documents_to_read)
    children = await ctx.enqueue_many(summarize, [{"document": document} for document in documents])
    summaries: dict[str, str] = {}
    failed: list[str] = []
    for document, child in zip(documents, children, strict=True):
        try:
            summaries[document] = await child.result()
        except interlock.JobFailed as error:
            failed.append(f"{document}: {error}")
    return Night(summaries, failed)


def documents_to_read() -> list[str]:
    return sorted(path.name for path in INBOX.glob("*.txt"))
