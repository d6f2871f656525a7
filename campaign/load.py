"""A client process of the part `acknowledged`: it enqueues and runs jobs over HTTP, and logs each acknowledged call.

A log is one JSON array in each line, written with one system call before the next request is made: a killed process
loses nothing that it was told. A call without a response is repeated until there is one.

| Line | Meaning |
|---|---|
| `["try", [key, …]]` | these jobs may exist from now on |
| `["enqueued", [[key, id], …]]` | the server acknowledged them |
| `["claimed", claim, [[id, fence], …]]` | leases that one claim got |
| `["finished", [[id, fence, status], …]]` | the server acknowledged these ends of runs |
| `["decided", approval, decision]` | the server acknowledged a decision |
| `["unknown", call]`, `["refused", code]` | a call without a response; a rejected one |
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
from typing import Any, Final

import httpx2

PRODUCERS, WORKERS = 2, 4
BATCH: Final = 20
LEASE_SECONDS: Final = 3.0
BACKLOG: Final = 400
ATTEMPTS: Final = 100  # more than faults can use up
ASKS_EVERY: Final = 50  # one job in so many asks for an approval
NARROW: Final = "narrow"  # a limit
NARROW_EVERY: Final = 10  # one job in so many names it


def payload_of(key: str) -> dict[str, str]:
    """Different for every job, with text that is easily damaged."""
    return {"key": key, "text": f'{key} ü \u2028 \\ " ' * 4}


def result_of(id: str, fence: int) -> dict[str, Any]:
    return {"of": id, "fence": fence}


class Client:
    """Producers, workers and approvers of one process."""

    def __init__(self, http: httpx2.AsyncClient, log: int, name: str, dice: random.Random, rate: float | None) -> None:
        self._rate = rate
        self._http, self._log, self._name, self._dice = http, log, name, dice
        self._numbers = itertools.count()
        self._open = 0
        self.stopping = False

    def note(self, *line: Any) -> None:
        os.write(self._log, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    async def insist(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        """Repeat the call until the server answers it with anything but `try again`."""
        while True:
            try:
                response = await self._http.request(method, path, json=body)
                if response.status_code < 500 and response.status_code != 429:
                    return response
                self.note("unknown", f"{path} {response.status_code}")
            except httpx2.HTTPError as error:
                self.note("unknown", f"{path} {type(error).__name__}")
            await asyncio.sleep(self._dice.uniform(0.02, 0.2))

    async def produce(self) -> None:
        while not self.stopping:
            keys = [f"{self._name}-{next(self._numbers)}" for _ in range(self._dice.randint(1, BATCH))]
            jobs = [
                {
                    "type": "asks" if self._dice.randrange(ASKS_EVERY) == 0 else "runs",
                    "payload": payload_of(key),
                    "idempotency_key": key,
                    "max_attempts": ATTEMPTS,
                    "backoff": {"kind": "fixed", "base_seconds": 0.1},
                    "limits": [{"name": NARROW}] if self._dice.randrange(NARROW_EVERY) == 0 else [],
                }
                for key in keys
            ]
            self.note("try", keys)
            response = await self.insist("POST", "/v1/jobs/batch", {"jobs": jobs})
            response.raise_for_status()
            self.note("enqueued", [[key, job["id"]] for key, job in zip(keys, response.json()["jobs"], strict=True)])
            self._open += len(keys)
            if self._rate is not None:
                await asyncio.sleep(len(keys) * PRODUCERS / self._rate)
            while self._open > BACKLOG and not self.stopping:
                self._open -= 1  # other processes may run what this one enqueued
                await asyncio.sleep(0.01)

    async def work(self, number: int) -> None:
        worker = f"{self._name}-w{number}"
        for turn in itertools.count():
            claim = f"{worker}-{turn}"
            asked = {"worker": worker, "limit": BATCH, "lease_seconds": LEASE_SECONDS, "wait_seconds": 1}
            response = await self.insist("POST", "/v1/claims", asked | {"claim_id": claim})
            if response.status_code != 200:
                self.note("refused", response.json()["code"])
                continue
            jobs = response.json()["jobs"]
            self.note("claimed", claim, [[job["id"], job["lease"]["fence"]] for job in jobs])
            ends = []
            for job in jobs:
                held = {"id": job["id"], "fence": job["lease"]["fence"], "worker": worker}
                if job["type"] == "asks" and not job["approvals"]:
                    await self._ask(held)
                elif end := self._end_of(held):
                    ends.append(held | end)
            if ends:
                await self._finish(ends)

    def _end_of(self, held: dict[str, Any]) -> dict[str, Any] | None:
        """Most runs succeed, some fail or are released, and some are forgotten until their lease expires."""
        match self._dice.randrange(40):
            case 0:
                return None
            case 1:
                return {"outcome": "fail", "error": {"message": "by chance"}}
            case 2:
                return {"outcome": "release"}
            case _:
                return {"outcome": "complete", "result": result_of(held["id"], held["fence"])}

    async def _finish(self, ends: list[dict[str, Any]]) -> None:
        response = await self.insist("POST", "/v1/finishes", {"items": ends})
        response.raise_for_status()
        ended = []
        for item in response.json()["items"]:
            if "error" in item:
                self.note("refused", item["error"]["code"])
            else:
                ended.append([item["id"], item["fence"], item["status"]])
        self._open -= len(ended)
        self.note("finished", ended)

    async def _ask(self, held: dict[str, Any]) -> None:
        asked = {"fence": held["fence"], "worker": held["worker"], "prompt": "Go on?", "on_deny": "resume"}
        response = await self.insist("POST", f"/v1/jobs/{held['id']}/approvals", asked)
        if response.status_code >= 400:
            self.note("refused", response.json()["code"])

    async def approve(self) -> None:
        """Two people decide the opposite at the same moment."""
        while True:
            response = await self.insist("GET", "/v1/approvals?status=open&limit=20")
            for approval in response.json()["items"]:
                both = ("approve", "deny")
                answers = await asyncio.gather(
                    *(self.insist("POST", f"/v1/approvals/{approval['id']}/decide", {"decision": one}) for one in both)
                )
                for decision, answer in zip(both, answers, strict=True):
                    if answer.status_code == 200:
                        self.note("decided", approval["id"], decision)
                    else:
                        self.note("refused", answer.json()["code"])
            await asyncio.sleep(0.2)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="campaign.load", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--log", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--rate", type=float, help="jobs per second; default: as many as possible")
    parser.add_argument("--stopping", action="store_true", help="enqueue nothing; SIGUSR1 changes to this")
    options = parser.parse_args()
    log = os.open(options.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    limits = httpx2.Limits(max_connections=32)
    async with httpx2.AsyncClient(base_url=options.url, timeout=5.0, limits=limits, trust_env=False) as http:
        client = Client(http, log, options.name, random.Random(options.seed), options.rate)
        client.stopping = options.stopping
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: setattr(client, "stopping", True))
        async with asyncio.TaskGroup() as group:
            for _ in range(PRODUCERS):
                group.create_task(client.produce())
            for number in range(WORKERS):
                group.create_task(client.work(number))
            group.create_task(client.approve())


if __name__ == "__main__":
    asyncio.run(main())
