"""The sessions in the README of each example, on both engines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from interlock.testing import MemoryApp
from tests.examples.conftest import EXAMPLES
from tests.support import console

WITH_SESSIONS = ("agent-fleet", "code-review", "mcp-worker", "nightly-batch", "research")
MAX_LINES = 150


@pytest.mark.parametrize("example", WITH_SESSIONS, indirect=True)
def test_the_commands_of_a_readme_print_what_it_shows(example: Path, url: str) -> None:
    text = (example / "README.md").read_text()
    assert console.replay(text, example, console.environment(INTERLOCK_DATABASE=url)) > 4


async def test_the_agent_on_the_front_page_runs_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "agent"}
    exec(program, names)
    memory = MemoryApp()
    memory.adopt(names["app"])
    await memory.limits.set("model", concurrency=3)
    job = await names["research"].enqueue("tides")
    for data in ({"answer": "Ada"}, None):
        await memory.run_until_idle()
        await memory.decide(job, "approve", data=data)
    await memory.run_until_idle()
    assert await job.result() == "FOR ADA: TIDES/CAUSES, TIDES/HISTORY"
    assert [chunk.text async for chunk in job.stream("report")] == ["For Ada: Tides/Causes, Tides/History"]
    await memory.close()


def test_each_example_is_listed_and_short() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    for directory in (place for place in EXAMPLES.iterdir() if place.is_dir()):
        assert f"({directory.name}/README.md)" in listed
        programs = [file for file in directory.rglob("*.py") if "__pycache__" not in file.parts]
        longest = max(len(file.read_text().splitlines()) for file in programs)
        assert longest <= MAX_LINES, directory
