"""Type checkers accept every Python example of the docs and of `examples/`, and reject wrong calls."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.forms import IS_LONG

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(r"```(?:python|py)\n(.*?)```", re.DOTALL)
# To read the types of these packages takes longer than all else, so only the long form does that.
LARGE = {"agents", "fastapi", "langgraph", "mcp", "pydantic_ai", "sqlalchemy"}
# An environment may lack some of them, and then an example with one of them has no types.
LEFT_OUT = {name for name in LARGE if not IS_LONG or find_spec(name) is None}
IMPORT = re.compile(r"^(?:from|import) (\w+)", re.MULTILINE)
PROGRAMS = [
    file
    for file in sorted((ROOT / "examples").rglob("*.py"))
    if "django-service" not in file.parts  # Django has no types of its own
]
LANGGRAPH = "# pyright: reportUnknownMemberType=false\n"  # its own signatures are incomplete
WRONG = """
from datetime import timedelta

import interlock

app = interlock.App("sqlite:///wrong.db")


@app.task
async def greet(name: str, times: int = 1) -> str:
    return name * times


async def search(topic: str) -> list[str]:
    return [topic]


@app.task
async def research(ctx: interlock.Context, topic: str) -> int:
    await ctx.step("search", search, 1)  # wrong
    await ctx.step("search")  # wrong
    await ctx.step("search", search, topic, attempts="3")  # wrong
    await ctx.sleep("60")  # wrong
    await ctx.sleep(timedelta(minutes=1))
    await ctx.approve("Publish?", on_deny="ask")  # wrong
    await ctx.enqueue(greet, 1)  # wrong
    await ctx.enqueue(greet, "ada")
    number: int = await ctx.ask("Which branch?")  # wrong
    number = await ctx.ask("How many?", schema=int)
    text: str = await ctx.receive("note", schema=int)  # wrong
    ctx.stream("tokens").write(number)  # wrong
    return text  # wrong


async def main() -> None:
    await greet.enqueue("ada", times="2")  # wrong
    await greet.enqueue()  # wrong
    await research.enqueue("tides")
    await research.enqueue(1)  # wrong
    job = await greet.enqueue("ada")
    length: int = await job.result()  # wrong
    print(length, job.status)  # wrong
    await app.schedules.preview("morning", n="1")  # wrong
    interlock.Worker("app")  # wrong
    app.task(max_attempts="5")  # wrong
    app.task(limits=[app.limit("provider", concurrency=20)], budgets=[app.budget("nightly", {"usd": 20}, per="day")])
    app.limit("provider", concurrency="20")  # wrong
    app.limit("provider", rate=60)  # wrong
    app.budget("nightly")  # wrong
    app.budget("nightly", {"usd": "20"})  # wrong
    app.budget("nightly", {"usd": 20}, per="week")  # wrong
"""


Errors = set[tuple[str, int, str]]  # file, line and message


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a module for each example, and one with wrong calls."""
    place = tmp_path_factory.mktemp("examples")
    for page in PAGES:
        for number, program in enumerate(EXAMPLE.findall(page.read_text()), 1):
            if LEFT_OUT.isdisjoint(IMPORT.findall(program)):
                if "langgraph" in program:
                    program = LANGGRAPH + program
                (place / f"{page.stem.lower().replace('-', '_')}_{number}.py").write_text(program)
    assert len(list(place.iterdir())) > 20
    for file in PROGRAMS:
        assert not (place / file.name).exists(), file
        if LEFT_OUT.isdisjoint(IMPORT.findall(file.read_text())):
            (place / file.name).write_text(file.read_text())
    (place / "wrong.py").write_text(WRONG)
    return place


def by_mypy(place: Path) -> Errors:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version=3.11", "--output=json", "--config-file="]
    command.append(f"--cache-dir={ROOT / '.mypy_cache' / 'examples'}")
    done = subprocess.run([*command, "."], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {(Path(one["file"]).name, one["line"], one["message"]) for one in found if one["severity"] == "error"}


def by_pyright(place: Path) -> Errors:
    """Return the errors of the fork of pyright that needs no download."""
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "reportMissingTypeStubs": False}
    (place / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "."]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr or done.stdout
    return {
        (Path(one["file"]).name, one["range"]["start"]["line"] + 1, one["message"])
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    }


@pytest.mark.parametrize("check", [by_mypy, by_pyright] if IS_LONG else [by_mypy])
def test_type_checkers_accept_the_examples_and_reject_wrong_calls(
    check: Callable[[Path], Errors], examples: Path
) -> None:
    found = check(examples)
    assert {one for one in found if one[0] != "wrong.py"} == set()
    wrong = {number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# wrong")}
    assert {line for name, line, _ in found if name == "wrong.py"} == wrong
