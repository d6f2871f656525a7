#!/usr/bin/env python3
"""Set up, run, check, test and measure Interlock from a checkout. Needs Python 3.11+ and nothing else."""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 - an old python3 gets a sentence, not a stack of errors
    sys.exit(f"dev.py needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable})")

import fcntl
import tomllib

ROOT = Path(__file__).resolve().parent
# The interpreter behind any virtual environment, which may be the very one that setup replaces.
PYTHON = os.path.realpath(sys.executable)
VENV = ROOT / ".venv"
BIN = VENV / "bin"
STAMP = VENV / "interlock-setup"
RUN_LOCK = ROOT / "requirements" / "run.txt"
TEST_INPUT = ROOT / "requirements" / "test.in"
TEST_LOCK = ROOT / "requirements" / "test.txt"


class CommandFailed(Exception):
    """A child command ended with something else than 0."""

    def __init__(self, command: Sequence[str], code: int) -> None:
        self.command, self.code = command, code
        super().__init__(f"exit code {code} from: {shlex.join(command)}")


def say(line: str) -> None:
    print(f"== {line}", flush=True)


def call(command: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> int:
    """Run a command with our own output and answer its exit code, 128 + n if signal n ended it."""
    words = [str(word) for word in command]
    stdin = subprocess.DEVNULL if os.environ.get("CI") else None
    try:
        code = subprocess.call(words, cwd=cwd, env={**os.environ, **(env or {})}, stdin=stdin)
    except OSError as error:
        print(f"dev.py: cannot run {words[0]}: {error.strerror}", file=sys.stderr)
        return 127
    return code if code >= 0 else 128 - code


def need(command: Sequence[str | Path], *, cwd: Path = ROOT) -> None:
    """Run a command that must succeed before anything after it makes sense."""
    code = call(command, cwd=cwd)
    if code:
        raise CommandFailed([str(word) for word in command], code)


@contextmanager
def alone() -> Iterator[None]:
    """Let one process at a time change the environment of this checkout."""
    handle = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another dev.py to finish its setup")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def wanted_stamp(locks: Sequence[Path]) -> str:
    """Return what the environment depends on; when any of it changes, the environment is made again."""
    lines = [f"python {sys.version.split()[0]} {PYTHON}", f"at {VENV}"]
    for path in (ROOT / "pyproject.toml", *locks):
        lines.append(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}")
    return "\n".join(lines) + "\n"


def setup(*, to_run_only: bool = False) -> None:
    """Make `.venv` from the hash-pinned requirements, unless it already matches them.

    Running needs the packages of run.txt only. Tests need those of test.txt, which contains them: they are added to
    an environment that was made to run, and an environment that was made for tests also runs.
    """
    with alone():
        to_run, to_test = wanted_stamp([RUN_LOCK]), wanted_stamp([RUN_LOCK, TEST_LOCK])
        current = STAMP.read_text() if STAMP.is_file() else ""
        if current == to_test or (to_run_only and current == to_run):
            return
        began = time.monotonic()
        uv = shutil.which("uv")
        if current != to_run:
            say(f"making .venv with {'uv' if uv else 'venv and pip'}, Python {sys.version.split()[0]}")
            if VENV.exists():
                shutil.rmtree(VENV)
            need([uv, "venv", "--quiet", "--python", PYTHON, VENV] if uv else [PYTHON, "-m", "venv", VENV])
        STAMP.unlink(missing_ok=True)
        install: list[str | Path]
        if uv:
            install = [uv, "pip", "install", "--quiet", "--python", BIN / "python"]
        else:
            install = [BIN / "python", "-m", "pip", "install", "--quiet", "--no-input"]
            install.append("--disable-pip-version-check")
        lock = RUN_LOCK if to_run_only else TEST_LOCK
        pins = sum("==" in line for line in lock.read_text().splitlines())
        say(f"installing {pins} pinned packages (up to a few minutes when nothing is cached)")
        need([*install, "--require-hashes", "-r", lock])
        say("installing interlock itself, editable")
        # The build tools are part of the test lock; to run, pip gets them for the moment of the build.
        need([*install, "--no-deps", *([] if to_run_only else ["--no-build-isolation"]), "-e", ROOT])
        STAMP.write_text(to_run if to_run_only else to_test)
        say(f"environment ready after {time.monotonic() - began:.0f} s")


def up(arguments: Sequence[str]) -> NoReturn:
    """Become `interlock up` in the current directory: signals and the exit code are then its own."""
    setup(to_run_only=True)
    command = [str(BIN / "interlock"), "up", *arguments]
    say(shlex.join(["interlock", *command[1:]]))
    os.execv(command[0], command)


def check() -> int:
    """Formatting, lint and types; all are run, the first failure is the answer."""
    setup()
    codes = [style()]
    say(shlex.join(types()))
    codes.append(call([BIN / "python", "-m", *types()]))
    return next(filter(None, codes), 0)


def style() -> int:
    """Check format and lint, which takes less than a second."""
    codes = []
    for command in (["ruff", "format", "--check", "."], ["ruff", "check", "."]):
        say(shlex.join(command))
        codes.append(call([BIN / command[0], *command[1:]]))
    return next(filter(None, codes), 0)


def types() -> list[str]:
    """Return the command that checks the types."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return ["mypy", *(name for name in tomllib.load(file)["tool"]["mypy"]["files"] if (ROOT / name).exists())]


@contextmanager
def beside(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of the environment while the block runs, then wait for it and print what it wrote."""
    say(f"{shlex.join(command)} (beside the tests)")
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen([BIN / "python", "-m", *command], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield child
            child.wait()
        finally:
            child.kill()
            child.wait()
        output.seek(0)
        say(shlex.join(command))
        print(output.read().decode(errors="replace"), end="", flush=True)


def test(*, fast: bool, long: bool, arguments: Sequence[str]) -> int:
    """Run the checks, then every test, and return the first failure.

    Tests that repeat something at random (kills, races, state machines, generated requests) have a short form, which
    this runs, and a long one with many more repetitions, which `prove` runs.
    """
    setup()
    browser()
    promtool()
    if long:
        containers()
    command = ["pytest", "-n", str(worker_count()), "--dist", "worksteal", *arguments]
    environment = {"INTERLOCK_TEST_LONG": "1"} if long else None

    def tests() -> int:
        say(shlex.join(command) + (" (long form)" if long else ""))
        return call([BIN / "python", "-m", *command], env=environment)

    if fast or long:
        return tests()
    checked = style()
    with beside(types()) as typed:
        tested = tests()
    checked = checked or typed.returncode
    if checked and not tested:
        say("tests passed, but the checks failed")
    return checked or tested


def prove(*, only: str | None, postgres: Path | None, arguments: Sequence[str]) -> int:
    """Run the long form of the tests, then the campaign, and return the first failure."""
    if postgres is not None:
        os.environ["INTERLOCK_TEST_POSTGRES_BIN"] = str(postgres.resolve())
    tested = test(fast=False, long=True, arguments=arguments if only == "tests" else []) if only != "campaign" else 0
    if only == "tests":
        return tested
    setup()
    command = ["campaign", *arguments]
    say(shlex.join(["python", "-m", *command]))
    return tested or call([BIN / "python", "-m", *command])


def browser() -> None:
    """Have a Chromium for the tests of the pages; where we may not install one, the tests say what is missing."""
    if os.environ.get("CHROMIUM_PATH") or shutil.which("chromium"):
        return
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        say("no chromium here, and no right to install it: the tests of the dashboard will fail; set CHROMIUM_PATH")
        return
    say("installing chromium for the tests of the dashboard (Debian's package)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    call([apt, "update", "-qq"], env=quiet)
    call([apt, "install", "-y", "-qq", "--no-install-recommends", "chromium"], env=quiet)


def promtool() -> None:
    """Have a promtool for the tests of the alert rules, without the service that Debian's package starts."""
    apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if (BIN / "promtool").exists() or shutil.which("promtool") or apt is None or unpack is None:
        return
    say("unpacking promtool for the tests of the alert rules (Debian's package prometheus)")
    with tempfile.TemporaryDirectory() as folder:
        if subprocess.call([apt, "download", "-qq", "prometheus"], cwd=folder):
            subprocess.call([apt, "update", "-qq"])
            subprocess.call([apt, "download", "-qq", "prometheus"], cwd=folder)
        for package in Path(folder).glob("*.deb"):
            subprocess.call([unpack, "-x", package, folder])
            shutil.copy(Path(folder) / "usr" / "bin" / "promtool", BIN / "promtool")


def containers() -> None:
    """Have what builds and runs the image and checks the units; where we may not install it, the tests say so."""
    tools = [name for name in ("buildah", "podman", "runc", "mmdebstrap") if shutil.which(name) is None]
    if shutil.which("systemd-analyze") is None:
        tools.append("systemd")
    apt = shutil.which("apt-get")
    if not tools or apt is None or os.geteuid() != 0:
        return
    say(f"installing {', '.join(tools)} for the tests of the image and the units (Debian's packages)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    call([apt, "update", "-qq"], env=quiet)
    call([apt, "install", "-y", "-qq", "--no-install-recommends", *tools, "iproute2"], env=quiet)


def worker_count() -> int:
    """One more than there are processors: while a test waits for a disk or a clock, another goes on."""
    return min((os.cpu_count() or 1) + 1, 8)


def docs(arguments: Sequence[str]) -> int:
    """Build the documentation site into `site/`; a broken link is an error."""
    setup()
    command = ["mkdocs", "build", "--strict", *arguments]
    say(shlex.join(command))
    return call([BIN / "python", "-m", *command], env={"NO_MKDOCS_2_WARNING": "1"})


def bench(arguments: Sequence[str]) -> int:
    """The engines, the worker, and other queues beside it, or the part that is named; answers the first failure."""
    setup()
    parts = {"engines": "bench", "worker": "bench.worker", "peers": "bench.peers"}
    modules = list(parts.values())
    if arguments[:1] and arguments[0] in parts:
        modules, arguments = [parts[arguments[0]]], arguments[1:]
    codes = []
    for module in modules:
        say(shlex.join(["python", "-m", module, *arguments]))
        codes.append(call([BIN / "python", "-m", module, *arguments]))
    return next(filter(None, codes), 0)


def lock(*, upgrade: bool) -> int:
    """Write the requirement files anew; a uv from the package index serves if there is none here."""
    with tempfile.TemporaryDirectory(prefix="interlock-lock-") as scratch:
        uv: str | Path | None = shutil.which("uv")
        if uv is None:
            say("no uv here: getting one for this run")
            need([PYTHON, "-m", "venv", scratch])
            need([Path(scratch) / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
            uv = Path(scratch) / "bin" / "uv"
        settle = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11"]
        settle += ["--generate-hashes", "--no-header", "--no-annotate"]
        settle += ["--no-emit-index-url", "--no-emit-find-links"]
        if upgrade:
            settle.append("--upgrade")
        # Relative names, and run.txt first: test.in builds on it.
        for source, target in (
            (["pyproject.toml", "--extra", "all"], RUN_LOCK.relative_to(ROOT)),
            ([str(TEST_INPUT.relative_to(ROOT))], TEST_LOCK.relative_to(ROOT)),
        ):
            say(f"settling {target}")
            need([*settle, *source, "--output-file", target])
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="dev.py", description=__doc__, allow_abbrev=False)
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, summary: str, *, passes_on: str = "") -> argparse.ArgumentParser:
        note = f" Other arguments go to {passes_on}." if passes_on else ""
        return commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.{note}", allow_abbrev=False
        )

    add("setup", "make .venv from the hash-pinned requirements; does nothing when it is current")
    add("up", "set up, then serve and run the demo on SQLite in the current directory", passes_on="`interlock up`")
    tests = add("test", "set up, then run the checks and every test", passes_on="pytest")
    tests.add_argument("--fast", action="store_true", help="skip the checks of format, lint and types")
    proofs = add(
        "prove",
        "set up, then run every test in its long form and the campaign (many hours)",
        passes_on="the campaign (parts, --seed, --size, --hours), or with `--only tests` to pytest",
    )
    proofs.add_argument("--only", choices=("tests", "campaign"), help="run only this half")
    proofs.add_argument(
        "--postgres", type=Path, metavar="DIR", help="directory with the programs of another PostgreSQL (15 or newer)"
    )
    add("docs", "set up, then build the documentation site into site/", passes_on="`mkdocs build`")
    add("check", "set up, then check formatting, lint and types")
    add("bench", "set up, then run the benchmarks: all, or `engines`, `worker` or `peers`", passes_on="each of them")
    locks = add("lock", "write the hash-pinned requirement files anew (needs the network)")
    locks.add_argument("--upgrade", action="store_true", help="move every pin to the newest version")
    return top


def run(command: str, options: argparse.Namespace, passed_on: Sequence[str]) -> int:
    if command == "up":
        up(passed_on)
    if command == "test":
        return test(fast=options.fast, long=False, arguments=passed_on)
    if command == "prove":
        return prove(only=options.only, postgres=options.postgres, arguments=passed_on)
    if command == "check":
        return check()
    if command == "docs":
        return docs(passed_on)
    if command == "bench":
        return bench(passed_on)
    if command == "lock":
        return lock(upgrade=options.upgrade)
    setup()
    say("environment is current")
    return 0


def main(argv: Sequence[str]) -> int:
    options, passed_on = parser().parse_known_args(argv)
    if passed_on[:1] == ["--"]:
        del passed_on[0]
    if passed_on and options.command not in ("up", "test", "prove", "bench", "docs"):
        parser().error(f"{options.command} does not take: {shlex.join(passed_on)}")
    try:
        return run(options.command, options, passed_on)
    except CommandFailed as failure:
        print(f"dev.py: {failure}", file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
