"""`interlock mcp`: the same tools on standard input and output, on a database of either engine or before a server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from interlock.cli.main import app
from interlock.domain.job import Filter
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.faces.mcp.stdio import OpenRequests
from interlock.storage.contract import Store
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.adapters.agents import ALL_ROLES, LEASED, MODES, WORKERS, agent_on_stdio, command, lease
from tests.api.rig import Api
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, SECOND, ManualClock

TENANT = "stdio"
HANDSHAKE: list[dict[str, Any]] = [
    {
        "jsonrpc": "2.0",
        "id": 0,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    },
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
]


@pytest.fixture
def url(engine: str, place: str, postgres: Postgres) -> str:
    return f"sqlite:///{place}" if engine == "sqlite" else postgres.dsn(place, user=APP_LOGIN)


async def opened(engine: str, place: str, postgres: Postgres) -> Store:
    """The same database an hour later."""
    clock = ManualClock(time.time_ns() // 1000 + 3600 * SECOND)
    if engine == "sqlite":
        return await SQLiteStore.open(place, clock=clock)
    return await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=2, clock=clock)


async def test_an_agent_works_on_a_database(url: str, engine: str) -> None:
    tenant = f"{TENANT}-{engine}"
    mode = MODES[engine == "sqlite"]
    async with agent_on_stdio("--database", url, "--tenant", tenant, mode=mode) as someone:
        assert await someone.tools() == ALL_ROLES | WORKERS
        waiting = asyncio.create_task(someone.claims(types=["a"], wait_seconds=60))
        made = await someone.does("enqueue_job", type="a", payload={"n": 1.5, "text": "né\u0000"})
        job = await waiting
        assert (job["id"], job["payload"]) == (made["id"], {"n": 1.5, "text": "né\u0000"})
        await someone.is_rejected("enqueue_job", 422, "invalid", type="", colour=1)
        opened = await someone.does("request_approval", **lease(job), prompt="Go?")
        assert set(opened) == {"approval", "receipt"}
        await someone.is_rejected("decide_approval", 403, "forbidden", approval_id=opened["approval"]["id"])
    roles = ("--role", "approve", "--role", "read")
    async with agent_on_stdio("--database", url, "--tenant", tenant, *roles) as approver:
        assert "claim_job" not in await approver.tools()
        (approval,) = (await approver.does("list_approvals", status="open"))["items"]
        decided = await approver.does("decide_approval", approval_id=approval["id"], decision="deny")
        assert decided["status"] == "denied"
        assert (await approver.does("get_job", job_id=job["id"]))["status"] == "failed"


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_an_agent_works_through_a_server_within_the_rights_of_its_token(guarded: Api, tmp_path: Path) -> None:
    producer = await guarded.as_role("produce", "read")
    worker = await guarded.as_role("work", worker_id="w1")
    files = {name: tmp_path / name for name in ("producer", "worker")}
    for name, caller in (("producer", producer), ("worker", worker)):
        files[name].write_text(f"{caller.token}\n")
    before = ("--server", guarded.url, "--token-file")
    async with (
        agent_on_stdio(*before, str(files["producer"])) as asks,
        agent_on_stdio(*before, str(files["worker"]), mode="legacy") as works,
    ):
        assert await works.tools() == WORKERS | LEASED
        await asks.is_rejected("claim_job", 403, "forbidden")
        claim = asyncio.create_task(works.claims(wait_seconds=60))
        made = await asks.does("enqueue_job", type="a", payload=[1], idempotency_key="k")
        again = await asks.does("enqueue_job", type="a", payload=[1], idempotency_key="k")
        assert (again["id"], again["replayed"]) == (made["id"], True)
        job = await claim
        await works.does("checkpoint_job", **lease(job), seq=1, data=[1])
        waiting = asyncio.create_task(asks.does("wait_for_job", job_id=job["id"], wait_seconds=60))
        files_to_keep = [{"name": "a b/ü.txt", "content_base64": "aGk="}]
        await works.does("complete_job", **lease(job), result={"ok": 1}, artifacts=files_to_keep)
        assert (await waiting)["result"] == {"ok": 1}
        await works.is_rejected("heartbeat_job", 409, "not_running", **lease(job))
        assert (await asks.does("get_artifact", job_id=job["id"], name="a b/ü.txt"))["text"] == "hi"
        assert (await asks.does("queue_stats", type="a"))["succeeded"] == 1
        assert [one["id"] for one in (await asks.does("list_jobs", tag=[], status=["succeeded"]))["items"]] == [
            job["id"]
        ]
        await asks.is_rejected("get_job", 404, "not_found", job_id="no/such id")
        claim = asyncio.create_task(works.claims(wait_seconds=60))
        await eventually(lambda: _is(guarded.service.admission.waiting == 1))
        claim.cancel()
        await eventually(lambda: _is(guarded.service.admission.waiting == 0))
        asyncio.create_task(works.client.call_tool("claim_job", {"wait_seconds": 60}))  # noqa: RUF006 - left behind
        await eventually(lambda: _is(guarded.service.admission.waiting == 1))
    await eventually(lambda: _is(guarded.service.admission.waiting == 0))


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_an_agent_on_a_server_without_auth_gets_no_approval_link(api: Api) -> None:
    job = await api.running(type="a")
    async with agent_on_stdio("--server", api.url) as works:
        opened = await works.does("request_approval", **lease(job), prompt="Go?")
    assert set(opened) == {"approval", "receipt"}
    assert (await api.engine.approvals.get(api.tenant, opened["approval"]["id"])).link_created_by is None


async def _is(value: bool) -> bool:
    return value


@contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`interlock mcp`, with a handshake behind it."""
    parameters = command(*arguments)
    running = subprocess.Popen(
        [parameters.command, *parameters.args], env=parameters.env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        for message in HANDSHAKE:
            send(running, message)
        assert answer(running)["id"] == 0
        yield running
    finally:
        running.kill()
        running.communicate()


def send(running: subprocess.Popen[str], message: dict[str, Any] | str) -> None:
    assert running.stdin is not None
    running.stdin.write(message if isinstance(message, str) else json.dumps(message))
    running.stdin.write("\n")
    running.stdin.flush()


def answer(running: subprocess.Popen[str]) -> dict[str, Any]:
    assert running.stdout is not None
    line = running.stdout.readline()
    assert line, running.stderr.read() if running.stderr else ""
    given: dict[str, Any] = json.loads(line)
    return given


def value(answer: dict[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = json.loads(answer["result"]["content"][0]["text"])
    return given


def call(id: int, tool: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": tool, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


async def test_a_killed_process_loses_nothing(url: str, engine: str, place: str, postgres: Postgres) -> None:
    tenant = f"{TENANT}-killed-{engine}"
    with process("--database", url, "--tenant", tenant) as running:
        send(running, call(1, "enqueue_job", type="a", payload={"n": 1}))
        made = value(answer(running))
        send(running, call(2, "claim_job", lease_seconds=600))
        (held,) = value(answer(running))["jobs"]
        send(running, call(3, "checkpoint_job", job_id=held["id"], fence=held["lease"]["fence"], seq=1, data="half"))
        assert value(answer(running)) == {"seq": 1}
        send(running, call(4, "claim_job", wait_seconds=60))
        running.send_signal(signal.SIGKILL)
        running.wait()
    store = await opened(engine, place, postgres)
    (job,) = await store.claim(tenant, ClaimFilter("next", limit=5))
    assert (job.id, job.attempt, job.checkpoint) == (made["id"], 2, '"half"')
    await store.close()


@pytest.mark.parametrize("engine", ["sqlite"])
def test_messages_before_the_end_of_input_get_a_response(url: str) -> None:
    with process("--database", url) as running:
        send(running, call(1, "enqueue_job", type="a"))
        for odd in ("this is no message", '{"id":{"a":1},"method":"tools/list"}', "\x00", "[" * 10_000):
            send(running, odd)
        for id in ("9" * 5_000, "1e999", "NaN", '"\\ud800"', "true", "null", "1.5", "[]"):
            send(running, f'{{"jsonrpc":"2.0","id":{id},"method":"tools/list"}}')
            send(running, f'{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"queue_stats"}}}}')
            cancel = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}'
            send(running, cancel % id)
        send(running, '{"jsonrpc":"2.0","id":9,"method":"tools/list","params":{"cursor":"\\ud800"}}')
        send(running, '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[1]}}')
        send(running, call(2, "claim_job", types=["nothing"], wait_seconds=60))
        send(running, call(3, "queue_stats"))
        out, err = running.communicate(timeout=RETRY_SECONDS)
        answers = {given["id"]: given for given in map(json.loads, out.splitlines())}
        assert value(answers[1])["status"] == "queued"
        assert value(answers[2]) == {"jobs": []}
        assert answers[3]["result"]["isError"] is False
        assert (running.returncode, "Traceback" in err) == (0, False)


async def test_the_process_exits_without_waiting_for_responses_that_cannot_come() -> None:
    requests = OpenRequests()
    for id in ("9" * 5_000, "1e999", "NaN", '"\\ud800"', "true", "null", "1.5", "{}"):
        requests.hear(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}')
    for text in (
        "",
        "[",
        '{"id":1,"method":"ping"}',
        '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\\ud800"}}',
    ):
        requests.hear(text)
    await asyncio.wait_for(requests.answered(), RETRY_SECONDS)
    for id in ("1", '"a"'):
        requests.hear(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}')
    waiting = asyncio.create_task(requests.answered())
    requests.hear('{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a"}}')
    await asyncio.sleep(0)
    assert not waiting.done()
    requests.ends(1)
    await asyncio.wait_for(waiting, RETRY_SECONDS)


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_sigterm_shuts_it_down_cleanly(url: str, place: str, postgres: Postgres) -> None:
    with process("--database", url, "--tenant", TENANT) as running:
        send(running, call(1, "queue_stats"))
        answer(running)
        send(running, call(2, "claim_job", types=["late"], wait_seconds=60))
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=RETRY_SECONDS) == 0
    store = await opened("sqlite", place, postgres)
    assert await store.find(TENANT, Filter(statuses=(Status.RUNNING,))) == []
    await store.close()


@pytest.mark.parametrize(
    ("arguments", "code", "given"),
    [
        (["--role", "king"], 4, "king"),
        (["--token-file", "x"], 4, "--server"),
        (["--server", "http://127.0.0.1:1", "--token-file", "none"], 4, "none"),
        (["--server", "nowhere"], 4, "https://HOST"),
        (["--database", "mysql://x"], 4, "postgresql://"),
    ],
)
def test_invalid_options_are_reported_immediately(
    arguments: list[str], code: int, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        app(["mcp", *arguments])
    out, err = capsys.readouterr()
    assert (end.value.code, out, given in err) == (code, "", True)


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("mcp", "mcp_types"):
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Missing())
from interlock.cli import up
from interlock.cli.main import app

assert up.servable_faces() == ("codeq", "moonmind")
for words in (["mcp"], ["serve", "--port", "0"]):
    try:
        app(words)
    except SystemExit as end:
        print(words[0], end.code)
"""


def test_without_the_extra_everything_else_works_and_mcp_names_the_missing_package(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], cwd=tmp_path, env=environment | {"INTERLOCK_FACES": "mcp"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "mcp 4\nserve 4\n", done.stderr
    assert done.stderr.count("pip install 'interlock[mcp]'") == 2
