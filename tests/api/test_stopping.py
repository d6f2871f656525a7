"""Stopping: waiting calls get a response, calls in flight complete, nothing is lost (G25)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from interlock.api.options import Options
from interlock.assemble import open_engine
from interlock.cli.serve import only_server_of
from interlock.domain.principal import ROLES, Principal, user
from interlock.errors import Invalid, StorageBroken
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import JobRequest, TokenRequest
from tests.api.rig import Api, problem, serving
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.faults import spoil_page
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock, fresh_database, migrated_file


async def test_long_polls_end_when_the_service_stops(api: Api) -> None:
    job = await api.enqueue(delay_seconds=600)
    claim = asyncio.create_task(api.post("/v1/claims", {"wait_seconds": 60}))
    result = asyncio.create_task(api.get(f"/v1/jobs/{job['id']}/result", params={"wait_seconds": 60}))
    await eventually(lambda: _is(api.service.admission.waiting == 2))
    api.server.should_exit = True
    assert api.ok(await claim) == {"jobs": []}
    assert api.ok(await result, 202)["status"] == "queued"
    assert (await claim).headers["connection"] == "close"


async def test_a_stopping_service_is_not_ready_but_healthy(api: Api) -> None:
    api.service.stop()
    problem(await api.get("/readyz"), 503, "stopping")
    assert (await api.get("/healthz")).status_code == 200


@contextmanager
def process(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`interlock serve` as a process, and where it listens; its log is `log_of` the directory."""
    command = [sys.executable, "-m", "interlock", "serve", "--port", "0", *arguments]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    # Not to a pipe: a pipe without a reader fills up and then blocks the server.
    with (cwd / "log").open("w") as log:
        running = subprocess.Popen(
            command, cwd=cwd, env=inherited | (environment or {}), stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line + log_of(cwd)
        yield running, found[0]
    finally:
        if running.poll() is None:
            running.kill()
        running.communicate()


def log_of(directory: Path) -> str:
    return (directory / "log").read_text()


async def test_sigterm_shuts_the_server_down_cleanly(engine: str, tmp_path: Path, postgres: Postgres) -> None:
    async with fresh_database(postgres) as name:
        url = f"sqlite:///{tmp_path}/x.db" if engine == "sqlite" else postgres.dsn(name, user=APP_LOGIN)
        with process("--database", url, cwd=tmp_path) as (running, address):
            async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=RETRY_SECONDS) as http:
                made = await http.post("/v1/jobs", json={"type": "a"})
                assert made.status_code == 201
                waiting = asyncio.create_task(http.post("/v1/claims", json={"types": ["none"], "wait_seconds": 60}))

                async def waits() -> bool:
                    return "interlock_http_requests_waiting 1.0" in (await http.get("/metrics")).text

                await eventually(waits)
                running.send_signal(signal.SIGTERM)
                assert (await waiting).json() == {"jobs": []}
            assert await asyncio.to_thread(running.wait, RETRY_SECONDS) == 0, log_of(tmp_path)
            log = log_of(tmp_path)
            lines = [json.loads(line) for line in log.splitlines()]
            requests = [line for line in lines if line["event"] == "request"]
            assert {"/v1/jobs", "/v1/claims"} <= {line["route"] for line in requests}
            assert url.rpartition("@")[2] not in log


def test_serve_rejects_a_public_host_without_auth(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "interlock", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=RETRY_SECONDS)
    assert done.returncode == 4
    assert "--auth tokens" in done.stderr
    assert list(tmp_path.iterdir()) == []


async def test_serve_with_tokens_requires_one(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/x.db"
    async with open_engine(database) as engine:
        admin = Principal("t", user("test"), ROLES)
        token = (await engine.tokens.create(admin, TokenRequest(roles=["admin"]))).text
    with process("--database", database, "--auth", "tokens", cwd=tmp_path) as (running, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=RETRY_SECONDS) as http:
            problem(await http.get("/v1/me"), 401, "unauthenticated")
            me = (await http.get("/v1/me", headers={"authorization": f"Bearer {token}"})).json()
            assert (me["tenant"], me["roles"]) == ("t", ["admin"])
        running.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(running.wait, RETRY_SECONDS) == 0
        assert token not in log_of(tmp_path)


async def test_a_server_with_broken_storage_reports_it_and_exits(tmp_path: Path) -> None:
    """G28: a corrupt page is read; no job is leased, and the process stops."""
    path = tmp_path / "x.db"
    async with open_engine(f"sqlite:///{path}") as engine:
        await engine.jobs.enqueue(Principal("default", user("test"), ROLES), JobRequest(type="a"))
    spoil_page(path, "job_body")
    with process("--database", f"sqlite:///{path}", cwd=tmp_path) as (running, address):
        async with httpx2.AsyncClient(base_url=address, trust_env=False, timeout=RETRY_SECONDS) as http:
            problem(await http.post("/v1/jobs", json={"type": "a"}), 503, "storage_broken")
        assert await asyncio.to_thread(running.wait, RETRY_SECONDS) == 1
        log = log_of(tmp_path)
        assert "corrupt" in log or "malformed" in log


async def test_an_idle_server_stops_when_its_maintenance_finds_the_storage_broken(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = await asyncio.to_thread(migrated_file, tmp_path / "x.db")
    store = await SQLiteStore.open(path, clock=clock)
    lost: list[Api] = []

    async def lose_the_file() -> None:
        async with serving(store, clock, Options(grace_seconds=0.0)) as api:
            lost.append(api)
            await api.running()
            await asyncio.to_thread(os.unlink, path)
            clock.advance(3600)
            api.engine.maintenance.start()
            await eventually(lambda: _is(api.service.broken is not None))

    with pytest.raises(StorageBroken, match="deleted or replaced"):
        await lose_the_file()
    await lost[0].engine.close()


def test_a_file_readable_by_others_is_served_with_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    for mode, reported in ((0o600, 0), (0o644, 1)):
        file.touch()
        file.chmod(mode)
        with process("--database", f"sqlite:///{file}", cwd=tmp_path) as (_, address):
            assert httpx2.get(f"{address}/healthz", trust_env=False, timeout=RETRY_SECONDS).status_code == 200
        given = [line for line in map(json.loads, log_of(tmp_path).splitlines()) if line["level"] == "warning"]
        assert len(given) == reported
        assert all("permissions is 0644, not 0600" in line["event"] for line in given)


def test_one_file_has_one_server(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/x.db"
    with only_server_of(database):
        with pytest.raises(Invalid, match="another process"), only_server_of(database):
            pass
        with only_server_of(f"sqlite:///{tmp_path}/y.db"):
            pass
    with only_server_of(database):
        pass


async def _is(fact: bool) -> bool:
    return fact
