"""The research agent is killed at each point of a run, and gives the right result without repeating a saved step."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from tests.examples.programs import BIN, running
from tests.support import console
from tests.support.eventually import eventually
from tests.support.forms import IS_LONG, chance

ROOT = Path(__file__).parents[2]
SAMPLE = 4
Point = list[Any]
PARTS = ("causes", "history", "effects", "open questions", "sources")


class Rig:
    """A program whose workers can be killed, and an app on the same place."""

    def __init__(self, program: asyncio.subprocess.Process, app: interlock.App, directory: Path) -> None:
        self.program, self.app, self.directory = program, app, directory

    async def work(self, kill: Point | None = None) -> list[Point]:
        """Run a worker until nothing is due, or until it is killed; return the points that it reached."""
        points = self.directory / "points.log"
        points.unlink(missing_ok=True)
        assert self.program.stdin is not None
        assert self.program.stdout is not None
        self.program.stdin.write(json.dumps(kill).encode() + b"\n")
        code = json.loads(await self.program.stdout.readline())
        assert code == (0 if kill is None else -9), (code, kill)
        if not points.exists():  # a worker that was killed after its last call has left nothing to do
            return []
        return [json.loads(line) for line in points.read_text().splitlines()]

    async def run(self, topic: str, kill: tuple[int, Point] | None = None) -> list[tuple[int, Point]]:
        """Run a job to its end, with a question and an approval in between; kill a worker in one of the three phases."""
        handle = await self.app.jobs.enqueue("research", {"topic": topic})
        reached: list[tuple[int, Point]] = []
        for phase in range(3):
            if kill is not None and kill[0] == phase:
                await self.work(kill[1])
                await self.revoke()
            reached += [(phase, point) for point in await self.work()]
            if phase < 2:
                (approval,) = await self.app.approvals.list(job_id=handle.id, status="open")
                data = {"name": "Ada"} if phase == 0 else None
                await self.app.approvals.decide(approval.id, "approve", data=data)
        page = f"published/{handle.id}.md"
        result = {"topic": topic, "published": page, "notes": len(PARTS), "comment": None}
        job = await handle.refresh()
        assert (job.status, job.result) == (Status.SUCCEEDED, result)
        notes = "\n".join(f"- What is known about {topic}, {part}." for part in PARTS)
        assert (self.directory / page).read_text().strip().endswith(notes)
        chunks = [chunk async for chunk in handle.stream("report")]
        whole = "".join(chunk.text for chunk in chunks if chunk.fence == chunks[-1].fence)
        assert whole == (self.directory / page).read_text()
        self.check_calls(topic, handle.id)
        return reached

    async def revoke(self) -> None:
        """End the leases of the killed worker now instead of at their expiry."""
        client = await self.app._client()
        for job in await client.jobs.list(Filter((Status.RUNNING,), limit=200)):
            await client.jobs.revoke(job.id, reason="the worker was killed")

    def check_calls(self, topic: str, job_id: str) -> None:
        """No model request is repeated once its step is saved, and the page is published once."""
        answers = {f"read: {topic}, {part}": f"What is known about {topic}, {part}." for part in PARTS}
        answers[f"plan: {topic}"] = f'"{topic}, {PARTS[0]}'
        saved: set[str] = set()
        asked: set[str] = set()
        published = 0
        for line in (self.directory / "calls.log").read_text().splitlines():
            kind, _, what = line.partition(" ")
            if kind == "saved":
                saved |= {prompt for prompt, answer in answers.items() if answer in what and what[:4] == prompt[:4]}
            if kind == "ask" and what in answers:
                assert what not in saved, f"{what} was asked again"
                asked.add(what)
            published += (kind, what) == ("publish", job_id)
        assert asked == set(answers)
        assert published == 1


@asynccontextmanager
async def rigged(url: str, directory: Path) -> AsyncIterator[Rig]:
    program = await asyncio.create_subprocess_exec(
        sys.executable, ROOT / "tests" / "examples" / "killed_worker.py", url, cwd=directory,
        env=console.environment(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}"), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with interlock.App(url) as app:
            await app.limits.set("model", concurrency=3, rate={"tokens": 1e6})
            yield Rig(program, app, directory)
    finally:
        program.kill()
        await program.wait()


async def kill_at_points(rig: Rig) -> None:
    """Run a job without a kill, then one for each point that it reached, or for some of them."""
    points = await rig.run("the moon")
    assert len(points) > 60, points
    assert {point[0] for _, point in points} >= {
        "save_step",
        "request_approval",
        "enqueue",
        "finishes",
        "ask",
        "publish",
    }
    chosen = points if IS_LONG else chance().sample(points, SAMPLE)
    for number, kill in enumerate(chosen):
        await rig.run(f"tide {number}", kill)


@pytest.mark.parametrize("example", ["research"], indirect=True)
async def test_a_research_agent_killed_at_any_point_repeats_no_saved_step(example: Path, url: str) -> None:
    async with rigged(url, example) as rig:
        await kill_at_points(rig)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("example", ["research"], indirect=True)
async def test_it_does_the_same_for_a_server(example: Path, url: str) -> None:
    command = (BIN / "interlock", "serve", "--database", url, "--auth", "off", "--port", "0")
    async with running(example, console.environment(), *command):
        address = ""

        async def is_up() -> bool:
            nonlocal address
            found = re.search(r"http://127\.0\.0\.1:\d+", (example / "log").read_text())
            address = found[0] if found else ""
            return bool(found)

        await eventually(is_up)
        async with rigged(address, example) as rig:
            await kill_at_points(rig)
