"""Imports point down, and the repository names no machine and no package index."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from interlock.api.native.jobs import EditRequest
from interlock.client.port import Edits
from interlock.domain.job import EDITABLE, FIELDS
from interlock.domain.transition import EditedFields
from interlock.sdk.values import Job

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "interlock"
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}

# Commands that work on a server too, and so know nothing but the client.
NOUNS = ("agents", "approvals", "artifacts", "ids", "jobs", "queues", "subscriptions", "tokens", "types", "workers")

# Who may import whom, besides the standard library and the own room. None: everything. A longer name wins
# over the room it stands in, and `storage.contract` allows that module and nothing beside it.
MAY_IMPORT: Mapping[str, set[str] | None] = {
    "errors": set(),
    "faces": {"errors", "config", "domain", "wire", "engine", "api"},
    "faces.mcp": {"errors", "domain", "wire", "engine", "api", "client.port"},
    "config": {"errors", "faces.installed_faces", "faces.check_face", "faces.load_face"},
    "domain": {"errors"},
    "wire": {"errors", "domain"},
    "tracing": {"errors"},
    "pauses": set(),
    "garbage": set(),
    "storage": {"errors", "domain", "pauses"},
    "engine": {"errors", "domain", "wire", "storage.contract"},
    "client": {"errors", "domain", "wire", "tracing", "pauses"},
    "client.local": {"errors", "domain", "wire", "engine", "tracing"},
    "webhooks": {"domain"},
    "sdk": {"errors", "domain", "client.port", "pauses"},
    "worker": {"errors", "domain", "sdk", "client.port", "tracing", "pauses", "garbage"},
    "agent_cli": {"errors", "sdk"},
    "integrations": {"errors", "sdk"},
    "integrations.mcp_tasks": {"errors", "sdk", "faces.mcp.task_protocol"},
    "integrations.django_tasks": {"errors", "sdk", "domain.lifecycle", "worker.loop", "assemble"},
    "api": {"errors", "domain", "wire", "engine", "tracing", "garbage"},
    "dashboard": {"errors", "domain", "wire", "engine", "client.port", "client.local"},
    "dashboard.pages": {"errors", "domain", "wire", "client.port", "client.local"},
    "assemble": None,
    "cli": None,
    **{f"cli.{noun}": {"errors", "domain", "wire", "client.port"} for noun in NOUNS},
    "demo": None,
    "testing": None,
    "__main__": None,
    "__init__": None,
}
# What the integrations import, by the extra that installs it: an environment may lack these packages.
FRAMEWORKS = {
    "pydantic_ai": "pydantic-ai-slim",
    "agents": "openai-agents",
    "openai": "openai-agents",
    "mcp_types": "mcp",  # its own dependency, released with it
    "langgraph": "langgraph",
    "langchain_core": "langgraph",
    "django": "django",
    "django_tasks": "django-tasks",
}
NO_THIRD_PARTY = {"__init__", "errors", "config", "domain"}
# Pure calculations that a room without other dependencies may use.
PURE = {"domain.cron": {"cronsim"}}
DRIVERS = {"apsw", "asyncpg", "obstore"}
DRIVER_ROOMS = {"storage"}
FALSE_MEMBER = re.compile(r"\bcast\(\s*[\"']?(Engine|Client|Store|Outbox)\b")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    """`storage.sqlite.store` for that file, `storage` for its package, `__init__` for the package itself."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def imported(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Every name that a module imports anywhere in it, inside functions and type-checking blocks too."""
    inside = ["interlock", *(module.split(".") if module != "__init__" else [])]
    package = inside if is_package else inside[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)


def rule_for(module: str) -> str | None:
    return max((rule for rule in MAY_IMPORT if within(module, rule)), key=len, default=None)


def rejection(module: str, target: str) -> str | None:
    """Why `module` may not import `target`, or None if it may."""
    rule = rule_for(module)
    if rule is None:
        return f"{module}: no such room in the import table"
    room, allowed = module.partition(".")[0], MAY_IMPORT[rule]
    top, _, inner = target.partition(".")
    if top in sys.stdlib_module_names:
        return None
    if top != "interlock":
        if room in NO_THIRD_PARTY and top not in PURE.get(module, ()):
            return f"{module} imports {target}: {room} takes nothing from outside the standard library"
        if top in DRIVERS and allowed is not None and room not in DRIVER_ROOMS:
            return f"{module} imports {target}: only storage talks to a driver"
        if not declared(top):
            return f"{module} imports {target}: pyproject.toml does not name it as a dependency"
        return None
    if allowed is None or inner == "__version__":
        return None
    if any(within(inner, name) for name in {room, *allowed}):
        return None
    return f"{module} imports {target}: {rule} may import only {', '.join(sorted(allowed)) or 'nothing of ours'}"


def canonical(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


@cache
def dependencies() -> frozenset[str]:
    """The distributions that the package asks for, with every extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    return frozenset(canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in asked)


@cache
def declared(top: str) -> bool:
    names = [*packages_distributions().get(top, []), FRAMEWORKS.get(top, "")]
    return any(canonical(name) in dependencies() for name in names)


def files() -> list[Path]:
    """What is in the repository or would be after `git add`."""
    listing = subprocess.run(
        # The checkout may belong to another user, as in a container.
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listing.returncode == 0, f"this test needs git and a checkout: {listing.stderr}"
    return [path for name in listing.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    found = []
    for path in files():
        content = path.read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), 1):
            if pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    return found


# Written in parts, so that this file does not match itself.
INDEX_HOST = re.compile(
    "|".join(
        [
            r"\bpy" + r"pi\.org",
            r"python" + r"hosted\.org",
            r"npm" + r"js\.(org|com)",
            r"https?://\S+/" + r"simple\b",
        ]
    )
)
MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:root|work|home|Users)/")


def test_only_a_protocol_adapter_and_the_command_line_mention_one() -> None:
    """An adapter is found by its entry point: the layers below it use none of them by name."""
    above = ("faces", "cli", "demo", "integrations")
    files = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".sql", ".html")]
    below = [path for path in files if path.relative_to(SOURCE).parts[0] not in above]
    assert len(below) > len(files) / 2
    naming = [path for path in below if re.search(r"codeq|moonmind|\bmcp\b", path.read_text(), re.IGNORECASE)]
    assert [str(path.relative_to(SOURCE)) for path in naming] == []


def delegates(source: str) -> bool:
    """Whether a class of the source passes on members that it does not name."""
    named = ("__getattr__", "__getattribute__")
    return any(
        (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name in named)
        or (isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id in named for one in node.targets))
        for outer in ast.walk(ast.parse(source))
        if isinstance(outer, ast.ClassDef)
        for node in outer.body
    )


def sliced_calls(source: str) -> list[int]:
    """The lines that pass a slice of a row on by position: `f(*row[2:18])`, `(*row[:3], now)` or `_make(row[1:])`."""

    def is_slice(node: ast.expr) -> bool:
        if isinstance(node, ast.Starred):
            node = node.value
        return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            makes = isinstance(node.func, ast.Attribute) and node.func.attr == "_make"
            parts = [one for one in node.args if makes or isinstance(one, ast.Starred)]
        elif isinstance(node, ast.Tuple):
            parts = [one for one in node.elts if isinstance(one, ast.Starred)]
        else:
            continue
        found += [node.lineno for one in parts if is_slice(one)]
    return found


def test_nothing_passes_calls_on_without_naming_them() -> None:
    """A wrapper spells out what it offers: mypy then checks it, and a reader finds it."""
    assert [name_of(path) for path in modules() if delegates(path.read_text())] == []
    assert [name_of(path) for path in modules() if FALSE_MEMBER.search(path.read_text())] == []


def test_no_row_is_passed_on_in_slices() -> None:
    """A new column must not shift the values of others: a row is read by names, or by a reader that counts them."""
    inner = ("storage", "engine", "wire", "client", "api")
    found = {name_of(path): sliced_calls(path.read_text()) for path in modules() if name_of(path).startswith(inner)}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "class W:\n    def __getattr__(self, name): ...",
        "class W:\n    async def __getattr__(self, name): ...",
        "class W:\n    __getattribute__ = other",
    ],
)
def test_the_search_finds_delegation(source: str) -> None:
    assert delegates(source)
    assert not delegates(source.replace("__getattr", "getattr"))


@pytest.mark.parametrize(
    "source", ["cast(Engine, x)", 'cast("Store", x)', "cast(Client, x)", "typing.cast('Outbox', x)"]
)
def test_the_search_finds_false_members(source: str) -> None:
    assert FALSE_MEMBER.search(source)


@pytest.mark.parametrize("source", ["f(*row[2:18])", "f(id, *row[:3])", "x = (*row[:3], now)", "Job._make(row[1:])"])
def test_the_search_finds_slices(source: str) -> None:
    assert sliced_calls(source) == [1]
    assert sliced_calls(re.sub(r"\[.*\]", "", source)) == []


def test_every_import_follows_the_table() -> None:
    assert modules(), f"no modules in {SOURCE}"
    refused = []
    for path in modules():
        targets = set(imported(path.read_text(), name_of(path), is_package=path.name == "__init__.py"))
        refused += [why for target in sorted(targets) if (why := rejection(name_of(path), target))]
        if rule_for(name_of(path)) is None:
            refused.append(f"{name_of(path)}: no such room in the import table")
    assert sorted(set(refused)) == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("domain.job", "import msgspec"),
        ("domain.job", "from interlock.storage.contract import Store"),
        ("domain.job", "def later():\n    from interlock import wire"),
        ("domain.job", "from ..engine import jobs"),
        ("errors", "from interlock.domain import job"),
        ("config", "from interlock.wire import encode"),
        ("wire", "from interlock.storage import contract"),
        ("storage.sqlite.store", "from interlock.engine import jobs"),
        ("engine.jobs", "from interlock.storage.sqlite.store import SqliteStore"),
        ("engine.jobs", "from interlock.storage import postgres"),
        ("engine.jobs", "from interlock.storage import Store"),
        ("engine.jobs", "import interlock"),
        ("engine.jobs", "import asyncpg"),
        ("engine.jobs", "if TYPE_CHECKING:\n    from interlock.assemble import App"),
        ("client.http", "from interlock.engine.jobs import Jobs"),
        ("sdk.tasks", "from interlock.client.local import Local"),
        ("api.native.jobs", "from interlock.client.port import Client"),
        ("api.app", "from interlock.faces.codeq.adapter import CodeqAdapter"),
        ("config", "from interlock.faces import codeq"),
        ("faces.codeq.adapter", "from interlock.storage.contract import Store"),
        ("dashboard.pages", "from interlock.storage.contract import Store"),
        ("dashboard.pages.job", "from interlock.engine.engine import Engine"),
        ("cli.jobs", "from interlock.engine.engine import Engine"),
        ("kitchen.sink", "import os"),
        ("api.app", "import a_package_nobody_declared"),
    ],
)
def test_the_table_rejects_forbidden_imports(module: str, statement: str) -> None:
    assert [rejection(module, target) for target in imported(statement, module)] != [None]


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("domain.job", "from interlock.errors import Error\nfrom interlock.domain import retry\nimport uuid"),
        ("domain.job", "from . import retry\nfrom .lifecycle import edges"),
        ("wire", "import msgspec\nfrom interlock.domain.job import Job"),
        ("storage.sqlite.store", "import apsw\nfrom interlock.storage import contract"),
        (
            "engine.jobs",
            "from interlock.storage.contract import Store\nfrom interlock.storage import contract",
        ),
        ("engine.jobs", "from interlock import __version__, errors, wire"),
        ("client.local", "from interlock.engine.jobs import Jobs"),
        ("faces.mcp.stdio", "from interlock.client.port import Client"),
        ("faces.codeq.adapter", "from interlock import config\nfrom interlock.api.adapters import Adapter"),
        ("config", "from interlock.faces import load_face"),
        ("cli.main", "from interlock.storage.postgres import store\nimport rich"),
        ("__init__", "from interlock.assemble import App"),
    ],
)
def test_the_table_allows_permitted_imports(module: str, statement: str) -> None:
    assert [why for target in imported(statement, module) if (why := rejection(module, target))] == []


# The table of fields, and the columns of each engine. Every other list of fields is derived from the table.
LISTS_OF_FIELDS = {
    "sdk/values.py",
    "domain/job.py",
    "storage/postgres/schema/04_jobs.sql",
    "storage/sqlite/schema/04_jobs.sql",
}
# The files that name a field: besides those above, the request (wire/__init__.py) and the option in sdk/tasks.py; the
# rest is what the field means. `requested_by` means nothing to Interlock, beyond a search for its text and a
# translation for MoonMind.
# `redrive_of` is searched for (redrive, attention) and linked (dashboard), and a redriven job may have a checkpoint
# without a run (job_view, claim) and another place in the trees that have a budget (job_tree).
# `expiry_delay_seconds` is part of the job state (transition) and decides when a lost run is retried (decide).
FILES_THAT_NAME = {"requested_by": 9, "redrive_of": 12, "expiry_delay_seconds": 9}


def sources() -> dict[str, set[str]]:
    """The words of every Python and SQL file of the package."""
    found = [path for path in SOURCE.rglob("*") if path.suffix in (".py", ".sql")]
    return {str(path.relative_to(SOURCE)): set(re.findall(r"\w+", path.read_text())) for path in found}


def test_only_the_table_and_the_schemas_list_the_fields_of_a_job() -> None:
    names = {name for name in FIELDS if "_" in name}  # the others are everyday words
    counts = {file: len(names & words) for file, words in sources().items()}
    assert {file for file, count in counts.items() if count > len(names) * 2 / 3} == LISTS_OF_FIELDS


@pytest.mark.parametrize("field", FILES_THAT_NAME)
def test_a_field_of_a_job_is_named_in_few_files(field: str) -> None:
    files = sorted(file for file, words in sources().items() if field in words)
    assert files
    assert len(files) <= FILES_THAT_NAME[field], files


def test_a_concern_has_one_number_in_the_schemas_of_both_engines() -> None:
    files = [path.name.split("_", 1) for path in SOURCE.glob("storage/*/schema/*.sql")]
    assert files
    assert len({number for number, _ in files}) == len({name for _, name in files}) == len({*map(tuple, files)})


def test_the_lists_of_editable_fields_are_those_of_the_table() -> None:
    """What a decision replaces, what a request and the client may name."""
    assert sorted(EDITABLE)
    for names in (EditedFields._fields, EditRequest.__struct_fields__, Edits.__annotations__):
        assert sorted({*names} - {"drop_deadline"}) == sorted(EDITABLE)


def test_a_public_job_has_the_fields_of_the_table() -> None:
    public = {name: name.removesuffix("_seconds") for name in FIELDS} | {"agent_kind": "agent", "agent_id": "agent"}
    of_its_tree = {"budgets", "budget_roots"}  # read from `limits`
    assert {one.name for one in fields(Job)} == {*public.values()} | of_its_tree


def test_buckets_are_locked_in_an_order_that_no_collation_changes() -> None:
    """Python and the columns sort by code point. A database may sort names otherwise, and two orders can deadlock."""
    text = (SOURCE / "storage" / "postgres" / "functions" / "flow.sql").read_text()
    orders = [
        line.partition("order by ")[2] for line in text.splitlines() if "order by u." in line or "order by s." in line
    ]
    named = [order for order in orders if ".name" in order]
    assert len(named) >= 2
    assert [order for order in named if re.search(r'\.(name|key)\b(?! collate "C"| <> \'\')', order)] == []


def test_importing_interlock_loads_nothing_from_outside_the_standard_library() -> None:
    program = "import sys; before = set(sys.modules); import interlock; print(*(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    loaded = {name.partition(".")[0] for name in run.stdout.split()}
    assert "interlock" in loaded
    assert sorted(loaded - {"interlock"} - sys.stdlib_module_names) == []


def test_no_module_has_a_meaningless_name() -> None:
    assert [name_of(path) for path in modules() if VAGUE_NAMES & set(name_of(path).split("."))] == []


def test_the_repository_names_no_package_index() -> None:
    assert lines_matching(INDEX_HOST) == []


def test_the_repository_names_no_path_of_one_machine() -> None:
    assert lines_matching(MACHINE_PATH) == []


def test_no_lock_file_that_records_an_index_is_in_the_repository() -> None:
    assert [path for path in files() if path.name == "uv.lock" or path.match("pylock*.toml")] == []


@pytest.mark.parametrize(
    ("pattern", "line", "matches"),
    [
        (INDEX_HOST, "index = https://" + "py" + "pi.org/simple", True),
        (INDEX_HOST, "https://mirror.example/" + "simple", True),
        (INDEX_HOST, "https://keepachangelog.com/en/1.1.0/", False),
        (MACHINE_PATH, "open('" + "/root" + "/x')", True),
        (MACHINE_PATH, "/work" + "/main/src", True),
        (MACHINE_PATH, "src/interlock/work/x /worker/ /v1/work/", False),
    ],
)
def test_the_searches_find_their_targets(pattern: re.Pattern[str], line: str, matches: bool) -> None:
    assert bool(pattern.search(line)) is matches
