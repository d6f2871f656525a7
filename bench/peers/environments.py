"""An environment for each contestant, made once, kept in the user's cache, and apart from ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench.plan import EngineName
from bench.versions import variables

CONTESTANTS: Final = Path(__file__).parent / "contestants"
INSTALL_SECONDS: Final = 900
NODE: Final = "node@24"


class NotInstalled(Exception):
    """A peer could not be brought here, so there is nothing to compare with."""


class Environment(NamedTuple):
    """How a script of a contestant is run."""

    command: Sequence[str]
    variables: Mapping[str, str]


class Peer(NamedTuple):
    """Another queue, as it is installed and run, and the measurements it takes part in."""

    name: str
    engine: EngineName
    packages: Sequence[str]
    script: str
    measurements: Sequence[str]

    @property
    def is_node(self) -> bool:
        return self.script.endswith(".mjs")


PEERS: Final = (
    Peer("graphile-worker", "postgres", ("graphile-worker@0.18.0", "pg@8"), "on_graphile.mjs",
         ("bulk", "drain-1", "drain-2", "single", "start")),
    Peer("PgQueuer", "postgres", ("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"), "on_pgqueuer.py",
         ("bulk", "drain-1", "drain-2", "single", "start")),
    # The newest version names a dependency that the registry does not have.
    Peer("pg-boss", "postgres", ("pg-boss@12.35.0",), "on_pgboss.mjs", ("bulk", "drain-1", "drain-2", "single")),
    Peer("Procrastinate", "postgres", ("procrastinate==3.10.0", "psycopg[binary]", "uvloop==0.23.0"),
         "on_procrastinate.py", ("bulk", "single", "start")),
    Peer("Huey", "sqlite", ("huey==3.5.4",), "on_huey.py", ("bulk", "drain-1", "single", "start")),
)  # fmt: skip


def interlock(before: Path | None = None) -> Environment:
    """Interlock as it is here, or as it is in the checkout of another version."""
    return Environment([sys.executable, str(CONTESTANTS / "on_interlock.py")], variables(before))


def installed(peer: Peer) -> Environment:
    """The environment of a peer, made if it is not there yet; what was left half is made anew."""
    place = _cache() / f"{peer.name.lower()}-{_fingerprint(peer)}"
    is_whole = place / "whole"
    if not is_whole.exists():
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        try:
            _install_node(peer, place) if peer.is_node else _install_python(peer, place)
        except (OSError, subprocess.SubprocessError) as error:
            raise NotInstalled(f"{peer.name} could not be installed: {_given(error)}") from None
        is_whole.touch()
    script = str(CONTESTANTS / peer.script)
    if peer.is_node:
        node = str(place / "node_modules" / "node" / "bin" / "node")
        return Environment([node, script], {"BENCH_MODULES": str(place)})
    return Environment([str(place / "bin" / "python"), script], {})


def _install_python(peer: Peer, place: Path) -> None:
    venv.create(place, with_pip=True)
    _call([str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", *peer.packages], place)


def _install_node(peer: Peer, place: Path) -> None:
    words = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(place)]
    _call([*words, NODE, *peer.packages], place)


def _call(command: Sequence[str], place: Path) -> None:
    subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)


def _given(error: Exception) -> str:
    reported = (getattr(error, "stderr", None) or "").strip().splitlines()
    return reported[-1] if reported else str(error)


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "interlock-bench"


def _fingerprint(peer: Peer) -> str:
    return hashlib.sha256(repr((peer.packages, NODE, sys.version)).encode()).hexdigest()[:12]
