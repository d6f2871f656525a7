"""A release: the built wheel and source distribution are complete, and run in an environment of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import interlock
from tests.support.scratch import LONG

ROOT = Path(__file__).resolve().parent.parent
# Modules that each extra makes importable.
EXTRAS = {
    "postgres": "asyncpg",
    "mcp": "mcp",
    "testing": "pytest",
    "otel": "opentelemetry.sdk",
    "pydantic-ai": "interlock.integrations.pydantic_ai",
    "openai-agents": "interlock.integrations.openai_agents",
    "langgraph": "interlock.integrations.langgraph",
    "mcp-tasks": "interlock.integrations.mcp_tasks",
    "django-tasks": "interlock.integrations.django_tasks",
    "s3": "obstore",
    "all": "asyncpg, mcp, obstore, opentelemetry.sdk",
}


def build(source: Path, target: Path) -> tuple[Path, Path]:
    """Build the wheel and the source distribution of a directory."""
    run(sys.executable, "-m", "hatchling", "build", "-d", str(target), cwd=source)
    (wheel,), (sdist,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return wheel, sdist


def run(*command: str, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("INTERLOCK_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def new_environment(place: Path) -> Path:
    """An environment with nothing in it, not even pip; return its programs."""
    run(sys.executable, "-m", "venv", "--without-pip", str(place), cwd=place.parent)
    return place / "bin"


def install(programs: Path, *what: str) -> None:
    run(
        sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet", *what,
        cwd=programs.parent,
    )  # fmt: skip


def lend_the_run_lock(programs: Path) -> None:
    """Link the packages of the run lock, and no others, so that no index is needed."""
    (site,) = programs.parent.glob("lib/python*/site-packages")
    for name in re.findall(r"^([a-z0-9-]+)==", (ROOT / "requirements" / "run.txt").read_text(), re.MULTILINE):
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            link = site / top
            if not link.exists():
                link.symlink_to(Path(str(found.locate_file(top))))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def test_the_wheel_contains_every_file_of_the_package(built: tuple[Path, Path]) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "interlock").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built[0]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == expected
    assert "interlock/dashboard/templates/base.html" in packed


def test_a_wheel_from_the_source_distribution_is_the_same(built: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(built[1]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "deploy", "tests", "Dockerfile"):
        assert (unpacked / name).exists(), name
    again, _ = build(unpacked, tmp_path / "dist")
    with zipfile.ZipFile(built[0]) as one, zipfile.ZipFile(again) as other:
        assert {info.filename: info.CRC for info in one.infolist()} == {i.filename: i.CRC for i in other.infolist()}


def test_the_wheel_runs_with_the_packages_of_the_run_lock_alone(built: tuple[Path, Path], tmp_path: Path) -> None:
    programs = new_environment(tmp_path / "venv")
    lend_the_run_lock(programs)
    install(programs, "--no-deps", "--no-index", str(built[0]))
    program, python = str(programs / "interlock"), str(programs / "python")
    lent = ", ".join(EXTRAS[extra] for extra in ("postgres", "mcp", "otel", "s3"))  # the extra `all`
    where = run(python, "-c", f"import interlock, {lent}; print(interlock.__file__)", cwd=tmp_path)
    assert where.strip().startswith(str(tmp_path))
    assert run(program, "--version", cwd=tmp_path).strip().endswith(interlock.__version__)
    database = f"sqlite:///{tmp_path}/jobs.db"
    run(program, "migrate", "--database", database, cwd=tmp_path)
    id = run(program, "jobs", "add", "report", "--database", database, cwd=tmp_path).strip()
    assert "queued" in run(program, "jobs", "show", id, "--database", database, cwd=tmp_path)


def test_every_extra_is_known_here(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        declared = re.findall(r"^Provides-Extra: (\S+)$", wheel.read(name).decode(), re.MULTILINE)
    assert set(declared) == set(EXTRAS)


if os.environ.get(LONG):  # installs from the package index

    @pytest.mark.parametrize("extra", sorted(EXTRAS))
    def test_each_extra_installs_into_an_empty_environment(
        built: tuple[Path, Path], tmp_path: Path, extra: str
    ) -> None:
        programs = new_environment(tmp_path / "venv")
        install(programs, f"{built[0]}[{extra}]")
        run(str(programs / "python"), "-c", f"import interlock, {EXTRAS[extra]}", cwd=tmp_path)
        assert run(str(programs / "interlock"), "--version", cwd=tmp_path)
