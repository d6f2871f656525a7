"""The web services of the examples, as their README starts them."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import pytest

from tests.examples.programs import BIN, running
from tests.support import console
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN


async def run(directory: Path, variables: dict[str, str], *command: str | Path) -> None:
    program = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await program.communicate()
    assert program.returncode == 0, output.decode()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


async def answers(http: httpx2.AsyncClient) -> None:
    async def is_up() -> bool:
        try:
            await http.get("/")
        except httpx2.TransportError:
            return False
        return True

    await eventually(is_up)


@pytest.mark.parametrize("example", ["fastapi-service"], indirect=True)
async def test_the_api_enqueues_streams_and_decides(example: Path, url: str) -> None:
    variables, port = console.environment(INTERLOCK_DATABASE=url), free_port()
    async with (
        running(example, variables, BIN / "uvicorn", "main:api", "--port", str(port)),
        running(example, variables, BIN / "interlock", "worker", "main:jobs"),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=RETRY_SECONDS) as http,
    ):
        await answers(http)
        order = {"number": 7, "amount": 250}
        id = (await http.post("/refunds", json=order)).json()["id"]
        assert (await http.post("/refunds", json=order)).json() == {"id": id}

        async def is_waiting() -> bool:
            return bool((await http.get(f"/refunds/{id}")).json()["approval"])

        await eventually(is_waiting)
        following = asyncio.create_task(http.get(f"/refunds/{id}/log"))
        decision = await http.post(f"/refunds/{id}/decision", json={"decision": "approve"})
        assert decision.json() == {"decision": "approve"}
        # The task runs twice, before and after the decision; a step writes once.
        assert (await following).text == "checking order 7\npaid: receipt-7\n"
        assert (await http.get(f"/refunds/{id}")).json() == {
            "status": "succeeded", "result": "receipt-7", "approval": None,
        }  # fmt: skip
        assert (await http.post(f"/refunds/{id}/decision", json={"decision": "deny"})).status_code == 409
        assert (await http.get("/refunds/01a1f047-1452-7123-8001-3e7cfd327435")).status_code == 404


@pytest.mark.parametrize("example", ["django-service"], indirect=True)
async def test_the_site_makes_the_invoice_of_an_order(example: Path, url: str, postgres: Postgres) -> None:
    if not url.startswith("sqlite"):  # the README's user owns the database
        admin = await asyncpg.connect(postgres.dsn(url.rpartition("/")[2].partition("?")[0]))
        await admin.execute(f"grant create on schema public to {APP_LOGIN}")
        await admin.close()
    variables, port = console.environment(INTERLOCK_DATABASE=url), free_port()
    manage = (sys.executable, "manage.py")
    await run(example, variables, *manage, "migrate", "--run-syncdb")
    async with (
        running(example, variables, *manage, "runserver", "--noreload", str(port)),
        running(example, variables, *manage, "interlock_worker"),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=RETRY_SECONDS) as http,
    ):
        await answers(http)
        created = await http.post("/orders", json={"item": "tide table"})
        number = created.json()["order"]
        seen: dict[str, Any] = {}

        async def has_invoice() -> bool:
            seen.update(json.loads((await http.get(f"/orders/{number}")).text))
            return bool(seen["invoice"])

        await eventually(has_invoice)
        assert seen == {"item": "tide table", "invoice": f"2026-{number:05}"}
        assert (await http.get("/orders/99")).status_code == 404
