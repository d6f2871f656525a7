"""`interlock jobs why` and `interlock workers` from outside."""

from __future__ import annotations

import asyncio
from typing import Any

from interlock import assemble
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import DEFAULT_TENANT
from tests.cli.test_cli import CLI
from tests.cli.test_cli import cli as cli


def ask(database: str, *asks: ClaimFilter) -> None:
    """The work of workers, in a separate process."""

    async def claim() -> None:
        async with assemble.open_engine(database) as engine:
            for one in asks:
                await engine.leases.claim(DEFAULT_TENANT, one)

    asyncio.run(claim())


def test_why_names_the_reason_and_other_reasons(cli: CLI) -> None:
    id = cli("jobs", "add", "research", "--delay", "3600", "--requires", "gpu").stdout.strip()
    reported = cli.json("jobs", "why", id)
    assert reported["clause"] == "due_later"
    lines = cli("jobs", "why", id).stdout.splitlines()
    assert lines == [
        f"due_later: {reported['message']}",
        "also no_worker_for_type: no worker seen in the last 60 s takes jobs of type research",
    ]
    assert cli("jobs", "why", "01890000-0000-7000-8000-000000000000").returncode == 3


def test_workers_are_listed_with_their_filters_and_leases(cli: CLI) -> None:
    assert cli("workers", "list").stdout == "no workers\n"
    id = cli("jobs", "add", "research").stdout.strip()
    able = ClaimFilter("w1", types=frozenset({"research", "mail"}), capabilities=frozenset({"gpu"}))
    ask(cli.database, able, ClaimFilter("w2", affinity_keys=None, repositories=frozenset()))
    listed: Any = cli.json("workers", "list")["items"]
    assert [(w["name"], w["running"], w["jobs"]) for w in listed] == [("w1", 1, [id]), ("w2", 0, [])]
    assert listed[0]["asks"] == [
        {"types": ["mail", "research"], "repositories": None, "capabilities": ["gpu"], "affinity_keys": []}
    ]
    head, first, second = cli("workers", "list").stdout.splitlines()
    assert head.split()[0] == "worker"
    assert (first.split()[0], "mail, research" in first, "gpu" in first) == ("w1", True, True)
    assert (second.split()[0], second.split()[-2:]) == ("w2", ["none", "any"])
    assert [w["name"] for w in cli.json("workers", "list", "--after", "w1")["items"]] == ["w2"]  # type: ignore[attr-defined]
    assert cli("workers", "list", "--limit", "0").returncode == 4
