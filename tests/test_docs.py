"""The documents are read by tests: what they leave out or promise in vain fails here."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Final

import msgspec
import pytest

from interlock import errors
from interlock.cli.main import app
from interlock.config import FILE, PREFIX, Settings, load
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.webhook import EVENTS
from interlock.faces import installed_faces, load_face
from interlock.wire import responses
from tests.support import console

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
CLI = (DOCS / "reference/cli.md").read_text()
SETTINGS = (DOCS / "reference/settings.md").read_text()
ERRORS = (DOCS / "reference/error-codes.md").read_text()


def error_classes() -> list[type[errors.Error]]:
    found: list[type[errors.Error]] = []
    waiting = [errors.Error]
    while waiting:
        waiting += (subs := waiting.pop().__subclasses__())
        found += subs
    return sorted({c for c in found if c.__module__ == errors.__name__}, key=lambda c: c.__name__)


def commands() -> list[str]:
    names = []
    for name in app:
        if not name.startswith("-"):
            subs = [sub for sub in app[name] if not sub.startswith("-")]
            names += [f"{name} {sub}" for sub in subs] or [name]
    return names


def test_there_are_commands_and_errors_to_check() -> None:
    assert {"migrate", "doctor", "jobs add", "jobs list", "jobs show", "audit verify", "audit head"} <= set(commands())
    assert len(error_classes()) > 12


@pytest.mark.parametrize("command", commands())
def test_every_command_is_documented(command: str) -> None:
    assert f"`interlock {command}" in CLI


@pytest.mark.parametrize("error", error_classes(), ids=lambda c: c.__name__)
def test_every_error_code_is_documented_and_every_class_is_in_the_tree(error: type[errors.Error]) -> None:
    assert re.search(rf"\b{error.__name__}\b", errors.__doc__ or "")
    if not error.__subclasses__() or error.code in ("invalid", "unavailable"):
        name = error.__name__ if "code" in vars(error) else r"\w+"
        assert re.search(rf"^\| `{error.code}` \| \d+ \| `{name}` \|", ERRORS, re.MULTILINE)


SETTING_NAMES = [field.name for field in fields(Settings) if field.name != "face_settings"]
FACE_SETTINGS = [name for face in installed_faces() for name in load_face(face).settings]


@pytest.mark.parametrize("setting", [*SETTING_NAMES, *FACE_SETTINGS])
def test_every_setting_is_documented(setting: str) -> None:
    assert f"| `{setting}` | `{PREFIX}{setting.upper()}` |" in SETTINGS


def test_the_example_of_a_settings_file_is_valid(tmp_path: Path) -> None:
    (example,) = blocks(SETTINGS, "toml")
    (tmp_path / FILE).write_text(example)
    assert load({}, environ={}, directory=tmp_path) != Settings()


def test_every_operation_of_the_history_is_documented() -> None:
    text = (DOCS / "explanation/audit.md").read_text()
    assert [verb for verb in Verb if f"`{verb}`" not in text] == []


def test_every_event_of_a_webhook_is_documented() -> None:
    text = (DOCS / "reference/webhook-events.md").read_text()
    assert [event for event in EVENTS if f"`{event}`" not in text] == []


def test_every_status_is_a_status_of_the_contract() -> None:
    expected = ["queued", "running", "waiting_for_approval", "retry", "succeeded", "failed", "dead_letter", "cancelled"]
    assert sorted(Status) == sorted(expected)


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(DOCS.rglob("*.md")), ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


GLOSSARY = DOCS / "reference" / "glossary.md"
GUIDES = [page for folder in ("tutorial", "how-to", "explanation") for page in sorted((DOCS / folder).glob("*.md"))]
# Terms that every page links, and those that only pages for newcomers link.
LINKED = (
    "approval link", "backoff", "checkpoint", "claim ID", "concurrency slot", "dead letter", "eligibility key",
    "epoch", "fence", "heartbeat", "idempotency key", "lease", "outbox", "principal", "redrive", "replay", "shard",
    "subscription", "tenant",
)  # fmt: skip
LINKED_FOR_NEWCOMERS = ("approval", "artifact", "attempt", "job", "queue", "step", "task", "worker")
NOT_PROSE = re.compile(
    r"```.*?```|^#.*?$|^\|.*?$|<[^>]*>|`[^`]*`|!?\[[^\]]*\]\((?!\S*glossary\.md#)[^)]*\)", re.DOTALL | re.M
)


def first_uses(page: Path) -> dict[str, tuple[int, str]]:
    """Return where a page first uses each term that it has to link, and the target of the link there or ""."""
    is_for_newcomers = page.parent.name == "tutorial" or page.name == "concepts.md"
    terms = [*LINKED, *(LINKED_FOR_NEWCOMERS if is_for_newcomers else ())]
    either = "|".join(term.replace(" ", r"\s+") for term in sorted(terms, key=len, reverse=True))
    prose = NOT_PROSE.sub(lambda match: " " * len(match[0]), page.read_text())
    found: dict[str, tuple[int, str]] = {}
    for use in re.finditer(rf"(?<![\w#/.-])({either})s?(?![\w-])(?:\]\(([^)]*)\))?", prose, re.IGNORECASE):
        term = " ".join(use[1].split()).lower()
        found.setdefault(term, (use.start(), use[2] or ""))
    return found


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_the_first_use_of_a_term_links_to_the_glossary(page: Path) -> None:
    wanted = {term: f"../reference/glossary.md#{term.replace(' ', '-')}" for term in first_uses(page)}
    assert {term: target for term, (_, target) in first_uses(page).items()} == wanted


def test_the_glossary_has_an_anchor_for_each_term() -> None:
    rows = re.findall(r'^\| <a id="(\S+)"></a>([^|]+) \|', GLOSSARY.read_text(), re.MULTILINE)
    assert [id for id, _ in rows] == [term.lower().replace(" ", "-") for _, term in rows]
    assert {*LINKED, *LINKED_FOR_NEWCOMERS} <= {term for _, term in rows}


def test_every_decision_is_listed() -> None:
    index = (DOCS / "contributing" / "decisions" / "README.md").read_text()
    assert [p.name for p in (DOCS / "contributing" / "decisions").glob("0*.md") if p.name not in index] == []


def test_the_change_guide_names_files_that_exist() -> None:
    text = (DOCS / "contributing" / "change-guide.md").read_text()
    cells = "".join(line for line in text.splitlines() if line.startswith("|"))
    named = {name for name in re.findall(r"`([\w./*-]+)`", cells) if "/" in name or name.endswith(".py")}
    assert len(named) > 40
    roots = (ROOT, ROOT / "src" / "interlock")
    assert sorted(name for name in named if not any(any(root.glob(name)) for root in roots)) == []


def test_the_map_of_the_architecture_names_modules_that_exist() -> None:
    text = (DOCS / "contributing" / "architecture.md").read_text()
    (plan,) = blocks(text.partition("## Map")[2].partition("##")[0], "")
    package, named = "", list[str]()
    for line in plan.splitlines():
        first, modules = line[:14].strip(), re.sub(r"\(.*?\)", "", line[14:]).split()
        package = first or package
        named += [first] if first else []
        named += [] if package.endswith(".py") else [package + name for name in modules]
    assert len(named) > 60
    source = ROOT / "src" / "interlock"
    exists = {name: (source / name).exists() or (source / f"{name}.py").exists() for name in named}
    assert [name for name in named if not exists[name]] == []
    packages = {f"{part.parent.name}/" for part in source.glob("*/__init__.py")}
    assert packages <= set(named), "add the package to the map"


def test_the_readme_names_the_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make up" in readme
    assert "make test" in readme


README_PROGRAM: Final = """
async def main() -> None:
    async with app:
        job = await research.enqueue(topic="tides")
        for decision in ({"data": {"answer": "Ada"}}, {}):
            await interlock.Worker(app).run(drain=True)
            (waiting,) = await app.approvals.list(status="open")
            await app.approvals.decide(waiting.id, "approve", **decision)
        await interlock.Worker(app).run(drain=True)
        print(await job.result())


import asyncio

asyncio.run(main())
"""


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks((ROOT / "README.md").read_text(), "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + README_PROGRAM],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "FOR ADA: TIDES/CAUSES, TIDES/HISTORY"


@pytest.mark.parametrize(
    "name",
    [
        "docs/explanation/steps-and-replay.md",
        "docs/how-to/retry-and-redrive.md",
        "docs/how-to/limit-concurrency.md",
        "docs/how-to/use-hooks.md",
    ],
)
def test_a_program_of_the_guides_runs_and_prints_the_documented_output(name: str, tmp_path: Path) -> None:
    text = (ROOT / name).read_text()
    (program,) = blocks(text, "python")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == blocks(text, "text")[0].splitlines()


def test_the_tests_of_the_guide_to_testing_pass(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["interlock.testing"]')
    (program,) = blocks((DOCS / "how-to/test-tasks.md").read_text(), "python")
    pytester.makepyfile(program)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_the_quickstart_works_as_written(tmp_path: Path) -> None:
    text = (DOCS / "tutorial/quickstart.md").read_text()
    (tmp_path / "research.py").write_text(*blocks(text, "python"))
    assert console.replay(text, tmp_path, console.environment()) == 8


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 100_000


def test_the_diagrams_match_the_script() -> None:
    spec = importlib.util.spec_from_file_location("diagrams", ROOT / "tools" / "diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for name, drawing in script.diagrams().items():
        assert (DOCS / "images" / name).read_text() == drawing, "write them again: python tools/diagrams.py"


def test_every_field_of_a_job_is_documented() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", (DOCS / "reference" / "job.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(field.name for field in msgspec.structs.fields(responses.Job))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
