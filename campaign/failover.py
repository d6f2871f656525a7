"""A quorum-synchronous cluster changes its leader again and again under load.

Every other change is a switchover that an operator asks for; the rest kill the leader as a power loss does. Clients
log what is acknowledged to them, and a probe notes when a server answers. Nothing acknowledged may be lost, nothing may
be finished twice, and the report has the distribution of the times without an answer.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final

import httpx2

from campaign import plot
from campaign.acknowledged import Fleet, compare, set_limit
from campaign.results import OUT, Outcome, Plan, Stopwatch
from interlock.storage.postgres.store import PostgresStore
from tests.support.children import own
from tests.support.cluster import Cluster, cluster
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template

PROBE_SECONDS: Final = 0.05
RATE: Final = 20.0  # jobs per second of each client


class Probe:
    """Notes when a write through a server was acknowledged."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.answers: list[float] = []

    async def run(self) -> None:
        async with httpx2.AsyncClient(base_url=self._url, trust_env=False, timeout=5.0) as http:
            while True:
                with suppress(httpx2.HTTPError):
                    if (await http.put("/v1/types/probe", json={})).status_code < 300:
                        self.answers.append(time.monotonic())
                await asyncio.sleep(PROBE_SECONDS)


def longest_gap(answers: Sequence[float], began: float, ended: float) -> float:
    """Return the longest time without an answer between two moments."""
    inside = [moment for moment in answers if began <= moment <= ended]
    return max(after - before for before, after in pairwise([began, *inside, ended]))


def distribution(gaps: Sequence[float]) -> dict[str, float]:
    """Minimum, median, 90th percentile and maximum."""
    if not gaps:
        return {}
    ordered = sorted(gaps)
    at = ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    found = {"least": ordered[0], "median": statistics.median(ordered), "p90": at, "most": ordered[-1]}
    return {name: round(value, 2) for name, value in found.items()}


def change(nodes: Cluster, *, kills: bool) -> None:
    """Change the leader, and return when the cluster is whole again."""
    if kills:
        old = nodes.leader
        nodes.kill(old)
        nodes.wait_for_another(old)
        nodes.revive(old)
    else:
        nodes.switch_over()
    nodes.until_whole()


async def run_on(nodes: Cluster, plan: Plan, directory: Path) -> Outcome:
    outcome = Outcome("failover", "changes of the leader", plan.seed, plan.size)
    gaps: dict[str, list[float]] = {"switchover": [], "kill": []}
    with tempfile.TemporaryDirectory(prefix="interlock-campaign-") as scratch:
        home = Path(scratch)
        own(home)
        async with AsyncExitStack() as stack:
            address = nodes.dsn(TEMPLATE, user=APP_LOGIN)
            store = await PostgresStore.open(address, size=4)
            stack.push_async_callback(store.close)
            await set_limit(store)
            fleet = Fleet("postgres", home, address, None, plan.seed, rate=RATE)
            stack.callback(fleet.end)
            await fleet.start(stack)
            probe = Probe(f"http://127.0.0.1:{fleet.ports[0]}")
            probing = asyncio.create_task(probe.run())
            stack.callback(probing.cancel)
            watch = Stopwatch(plan, outcome)
            while await fleet.gets_on() and not watch.is_over and not fleet.book.violations:
                kind = "kill" if outcome.done % 2 else "switchover"
                began = time.monotonic()
                await asyncio.to_thread(change, nodes, kills=kind == "kill")
                await fleet.gets_on()
                gaps[kind].append(longest_gap(probe.answers, began, time.monotonic()))
                outcome.done += 1
            await fleet.drain(store)
            fleet.end()
            await compare(fleet.book, store)
            outcome.violations += fleet.book.violations[:20]
            outcome.numbers |= {
                "jobs acknowledged": len(fleet.book.ids),
                "completions acknowledged": len(fleet.book.succeeded),
                "calls repeated": fleet.book.counts["unknown"],
                "seconds without an answer": {kind: distribution(some) for kind, some in gaps.items()},
            }
    curves = {
        kind: [(float(100 * (n + 1) / len(some)), gap) for n, gap in enumerate(sorted(some))]
        for kind, some in gaps.items()
        if some
    }
    title = "Seconds without an answer, by percentile"
    outcome.numbers["plot"] = plot.write(directory, "failover-gaps", title, "% of the changes", curves)
    return outcome


def run(plan: Plan, directory: Path = OUT) -> Outcome:
    with cluster() as nodes:
        asyncio.run(make_template(nodes))
        return asyncio.run(run_on(nodes, plan, directory))
