"""A code reviewer: it reads each file of a diff, proposes comments, and posts only what people approve."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import interlock

app = interlock.App()
POSTED = Path("posted")
COMMENTS = {  # what an approver may send back: the comments, changed or shortened
    "type": "object",
    "properties": {"comments": {"type": "array", "items": {"type": "string"}}},
    "required": ["comments"],
}


@dataclass
class Finding:
    """One comment on one file."""

    file: str
    text: str
    risk: int


@dataclass
class Review:
    """The result of the job."""

    findings: int
    posted: list[str]
    reason: str | None = None


def look(file: str, lines: list[str]) -> list[Finding]:
    """Review the added lines of one file. Replace the body with a call of a model."""
    rules = {"eval(": ("do not evaluate text", 9), "print(": ("log instead of print", 2), "TODO": ("open task", 1)}
    added = [line for line in lines if line.startswith("+")]
    return [Finding(file, text, risk) for line in added for word, (text, risk) in rules.items() if word in line]


def split(diff: str) -> dict[str, list[str]]:
    """Return the changed lines of each file of a unified diff."""
    files: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in diff.splitlines():
        if line.startswith("+++ "):
            lines = files.setdefault(line.removeprefix("+++ b/"), [])
        elif not line.startswith(("---", "diff ")):
            lines.append(line)
    return files


@app.task(agent=("reviewer", "code"), max_attempts=3, timeout=600)
async def review(ctx: interlock.Context, diff: str) -> Review:
    """Review a diff: one saved step for each file, then one approval. Two people decide about a risky finding."""
    files = split(diff)
    findings: list[Finding] = []
    for number, (file, lines) in enumerate(files.items(), 1):
        findings += await ctx.step(f"look at {file}", look, file, lines)
        ctx.progress(number / len(files), file)
    if not findings:
        return Review(0, [])

    risk = max(finding.risk for finding in findings)
    decision = await ctx.approve(
        f"Post comments ({len(findings)})?",
        name="post",
        details=[asdict(finding) for finding in findings],
        risk="high" if risk > 5 else "low",
        required=2 if risk > 5 else 1,
        schema=None if risk > 5 else COMMENTS,  # one person may change the comments; two vote on exactly these
        on_deny="resume",
        expires_in=3 * 24 * 3600,
    )
    if decision.denied:
        return Review(len(findings), [], decision.comment)
    proposed = [f"{finding.file}: {finding.text}" for finding in findings]
    edited: dict[str, Any] = decision.data or {"comments": proposed}
    return Review(len(findings), await ctx.step("post", post, ctx.id, edited["comments"]), decision.comment)


def post(key: str, comments: list[str]) -> list[str]:
    """Post comments. Replace the body with a call of your code host, and pass it the key against repeats."""
    POSTED.mkdir(exist_ok=True)
    (POSTED / f"{key}.json").write_text(json.dumps(comments, indent=2))
    return comments


async def main(file: str) -> None:
    async with app:
        diff = await asyncio.to_thread(Path(file).read_text)
        job = await review.options(tags=[Path(file).stem]).enqueue(diff)
        print(job.id)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or ["change.diff"]))
