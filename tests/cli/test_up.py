"""`interlock up` as a process: the demo goes through every ending, and the process stops in good order."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.eventually import RETRY_SECONDS, eventually

OWN_APP = """
import interlock

app = interlock.App("sqlite:///elsewhere.db")

@app.task
async def double(number: int) -> int:
    return 2 * number
"""


class Up:
    """One `interlock up` and what it has printed so far."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "interlock", "up", "--port", "0", *arguments],
            cwd=directory,
            env={name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed = ""
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.printed += line

    async def until_printed(self, pattern: str) -> str:
        async def there() -> bool:
            assert self.process.poll() is None, self.printed
            return re.search(pattern, self.printed) is not None

        await eventually(there)
        found = re.search(pattern, self.printed)
        assert found is not None
        return found.group(1)

    async def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=await self.until_printed(r"serves (http://\S+) "), timeout=RETRY_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(RETRY_SECONDS)
        self._reading.join()
        return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def up(*arguments: str) -> Up:
        started.append(Up(tmp_path, *arguments))
        return started[-1]

    yield up
    for one in started:
        if one.process.poll() is None:
            one.stop(signal.SIGKILL)
        assert one.process.stdout is not None
        one.process.stdout.close()


async def job_of(client: httpx2.AsyncClient, type: str) -> dict[str, Any] | None:
    items = (await client.get("/v1/jobs", params={"type": type})).json()["items"]
    return (await client.get(f"/v1/jobs/{items[0]['id']}")).json() if items else None


async def until(client: httpx2.AsyncClient, type: str, status: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def there() -> bool:
        found.update(await job_of(client, type) or {})
        return found.get("status") == status

    await eventually(there)
    return found


async def test_the_demo_shows_every_outcome_and_finishes_after_an_approval(start: Callable[..., Up]) -> None:
    up = start()
    async with await up.client() as client:
        report = await until(client, "report", "succeeded")
        assert report["attempt"] == 2
        gathered, written = (
            re.findall(r"process (\d+)", report["result"][part])[0] for part in ("gathered", "written")
        )
        assert gathered != written == str(up.process.pid)
        history = (await client.get(f"/v1/jobs/{report['id']}/history")).json()["items"]
        assert "lease_expired" in [row["reason"] for row in history]

        assert (await until(client, "plan", "succeeded"))["result"].keys() == {
            "tides: causes", "tides: history", "tides: open questions",
        }  # fmt: skip
        assert (await until(client, "summarize", "succeeded"))["attempt"] == 2
        assert "does not answer" in (await until(client, "import_feed", "dead_letter"))["error"]["message"]

        assert (await until(client, "narrate", "succeeded"))["result"] == "calm and slow tides rise and fall"
        assert (await until(client, "order", "succeeded"))["result"] == "charged for 2 copies"
        assert (await until(client, "embed", "succeeded"))["usage"] == {"tokens": 380, "usd": 0.015}
        assert (await client.get("/v1/schedules/digest")).json()["next_at"]
        assert (await client.get("/v1/budgets/demo")).json()["spent"]["usd"] > 0
        question = await up.until_printed(r"approvals answer (\S+)")
        answered = await client.post(
            f"/v1/approvals/{question}/decide", json={"decision": "approve", "data": {"answer": "Tides"}}
        )
        assert answered.status_code == 200, answered.text
        assert (await until(client, "interview", "succeeded"))["result"] == "Tides"
        await until(client, "publish", "waiting_for_approval")
        approval = await up.until_printed(r"approvals approve (\S+)")
        decided = await client.post(f"/v1/approvals/{approval}/decide", json={"decision": "approve", "comment": "go"})
        assert decided.status_code == 200, decided.text
        assert (await until(client, "publish", "succeeded"))["result"] == {"published": True, "comment": "go"}
        await up.until_printed(r"publish +(running → succeeded)")
    assert up.stop() == 0
    assert "Traceback" not in up.printed


async def test_a_second_start_continues_plays_the_demo_again_and_ctrl_c_stops_it(
    start: Callable[..., Up], tmp_path: Path
) -> None:
    first = start()
    approval = await first.until_printed(r"approvals approve (\S+)")
    assert first.stop(signal.SIGINT) == 0
    second = start()
    assert await second.until_printed(r"approvals approve (\S+)") == approval
    approve = next(line for line in second.printed.splitlines() if "approvals approve" in line)
    approving = await asyncio.create_subprocess_shell(approve, cwd=tmp_path)
    assert await approving.wait() == 0
    await second.until_printed(r"publish +(running → succeeded)")
    async with await second.client() as client:
        newest = await until(client, "publish", "waiting_for_approval")
        assert newest["approval_id"] != approval
        await until(client, "report", "succeeded")
        assert len((await client.get("/v1/jobs", params={"type": "report"})).json()["items"]) == 2
    assert second.stop(signal.SIGINT) == 0


async def test_it_runs_a_given_app_on_a_given_database(start: Callable[..., Up], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_APP)
    up = start("own:app", "--database", "sqlite:///here.db")
    async with await up.client() as client:
        await client.post("/v1/jobs", json={"type": "double", "payload": {"number": 21}})
        assert (await until(client, "double", "succeeded"))["result"] == 42
    assert up.stop() == 0
    assert "--database sqlite:///here.db" in up.printed
    assert not (tmp_path / "elsewhere.db").exists()


def test_it_is_for_sqlite_only(start: Callable[..., Up]) -> None:
    up = start("--database", "postgresql://nobody@localhost/none")
    assert up.process.wait(RETRY_SECONDS) == 4


async def test_a_file_has_one_server(start: Callable[..., Up]) -> None:
    first = start()
    await first.until_printed(r"serves (http://\S+) ")
    second = start()
    assert second.process.wait(RETRY_SECONDS) == 4
    assert first.stop() == 0
