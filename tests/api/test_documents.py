"""The documents about the service match it: every route, role, code, limit and metric."""

from __future__ import annotations

import re
from pathlib import Path

from interlock.api.admission import Admission
from interlock.api.app import routes
from interlock.api.metrics import Metrics, TenantState
from interlock.api.openapi import LEADS
from interlock.api.options import Options
from interlock.api.problems import catalogue
from interlock.domain.registry import QueueStats
from interlock.engine.metrics import EngineMetrics
from interlock.storage.sqlite.store import SQLiteStore

DOCS = Path(__file__).parents[2] / "docs"
API = (DOCS / "reference/http-api.md").read_text()
ERRORS = (DOCS / "reference/error-codes.md").read_text()
DEPLOYING = re.sub(r"\s+", " ", (DOCS / "how-to/deploy.md").read_text())
METRICS = (DOCS / "reference/metrics-and-logs.md").read_text()


def test_every_route_is_documented_with_its_roles_and_no_other_is() -> None:
    rows = re.findall(r"^\| (GET|POST|PUT|PATCH|DELETE) `([^`]+)` \| ([^|]+) \|", API, re.MULTILINE)
    given = {(method, path): set(who.strip().split(", ")) for method, path, who in rows}
    served = {
        (route.method, route.path): set(route.roles) or ({"any credential"} if route.needs_credential else {"none"})
        for route in routes()
    }
    assert given == served | {("GET", "/openapi.json"): {"none"}, ("GET", "/docs"): {"none"}}


def test_every_code_is_documented_with_its_status() -> None:
    given = {code: int(status) for code, status in re.findall(r"^\| `(\w+)` \| (\d{3}) \|", ERRORS, re.MULTILINE)}
    assert given == {
        code: status for code, (status, _) in catalogue().items() if code not in ("conflict", "gone", "fatal")
    }


async def test_every_metric_is_documented(tmp_path: Path) -> None:
    store = await SQLiteStore.open(str(tmp_path / "x.db"))
    text = Metrics(Admission(Options()), EngineMetrics(store)).text(TenantState([QueueStats("work", ready=1)])).decode()
    await store.close()
    names = set(re.findall(r"^# TYPE (interlock_\w+?)(?:_total|_created)? ", text, re.MULTILINE))
    given = {name.removesuffix("_total") for name in re.findall(r"^\| `(interlock_\w+)` \|", METRICS, re.MULTILINE)}
    assert given == names


def test_every_link_leads_from_a_response_to_an_operation_that_accepts_it() -> None:
    paths = {route.name: route.path for route in routes()}
    for name, leads in LEADS.items():
        assert name in paths
        assert all(f"{{{leads.parameter}}}" in paths[target] for target in leads.to)


def test_the_documented_limits_are_those_of_the_service() -> None:
    options = Options()
    for given in (
        f"{options.most_active}; one tenant half",
        f"| long polls and streams | {options.most_waiting:,}; shared in the same way |",
        f"| requests whose body is arriving | {options.most_arriving:,}; shared in the same way |",
        "all callers without a credential together an eighth",
        f"| connections | {options.most_connections:,} |",
        f"{options.body_budget // 1024**2} MiB",
        f"{options.largest_head // 1024} KiB, 100 headers, {options.head_seconds:g} s",
        f"{options.body_seconds:g} s; an upload needs {options.slowest_upload // 1024} KiB/s",
        f"| a client that reads nothing | {options.stalled_seconds:g} s |",
        f"| an idle connection | {options.idle_seconds:g} s |",
        f"get up to {options.grace_seconds:g} s",
    ):
        assert given in DEPLOYING, given
    assert options.strangers_share == 1 / 8
    assert f"every {options.keep_alive_seconds:g} s" in API
