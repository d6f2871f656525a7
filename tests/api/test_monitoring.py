"""The alert rules and the board in deploy/: promtool accepts them, and the server exposes each metric they name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from interlock.domain.webhook import DeliveryResult, DeliveryStatus, Outcome
from tests.api.rig import Api, problem

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "interlock.json").read_text())
METRIC = re.compile(r"\b(interlock_[a-z_]+)(?:\{([^}]*)\})?")
SELECTOR = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')
GROUPED = re.compile(r"\bby \(([^)]*)\)")
SCRAPED = {"instance", "job"}  # labels that Prometheus adds
UNDRAWN = {
    "interlock_limit_running", "interlock_limit_available", "interlock_limit_capacity", "interlock_budget_reserved",
}  # fmt: skip


def promtool(*arguments: str | Path, text: str | None = None) -> str:
    """Run promtool, which must accept what it reads."""
    own = Path(sys.executable).with_name("promtool")
    program = str(own) if own.exists() else shutil.which("promtool")
    assert program, "no promtool: run `python3 dev.py test`, or install Debian's package prometheus"
    done = subprocess.run([program, *map(str, arguments)], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> list[str]:
    """Every query of the board; Grafana fills in the interval."""
    queries = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    return [query.replace("$__rate_interval", "5m") for query in queries]


def test_each_alert_fires_for_its_cause_alone() -> None:
    assert "SUCCESS" in promtool("check", "rules", ALERTS)
    assert "SUCCESS" in promtool("test", "rules", ALERTS.with_name("alerts_test.yml"))
    names = {rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]}
    (cases,) = yaml.safe_load(ALERTS.with_name("alerts_test.yml").read_text())["tests"]
    fired = {case["alertname"] for case in cases["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {case["alertname"] for case in cases["alert_rule_test"] if not case.get("exp_alerts")} == names


def test_prometheus_can_run_every_query_of_the_board(tmp_path: Path) -> None:
    rules = [{"record": f"board:{n}", "expr": query} for n, query in enumerate(expressions())]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", tmp_path / "board.yml")


async def operate(api: Api) -> None:
    """Produce a sample of every metric."""
    await api.put("/v1/limits/openai", {"concurrency": 1})
    await api.put("/v1/budgets/team", {"amount": {"usd": 10}})
    await api.enqueue(max_attempts=1, limits=[{"name": "openai"}], budgets=["team"])
    (job,) = await api.claim()
    finish = {"fence": job["lease"]["fence"], "usage": {"usd": 1}}
    api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", finish))
    problem(await api.post(f"/v1/jobs/{job['id']}/fail", {"fence": 0, "error": {"message": "no"}}), 409, "lease_lost")
    problem(await api.post("/v1/claims", {"limit": 0}), 422, "invalid")
    api.ok(await api.post("/v1/subscriptions", {"url": "https://example.com/", "events": ["job.queued"]}), 201)
    await api.enqueue(max_attempts=1)
    await api.claim()
    api.clock.advance(61)
    await api.engine.maintenance.sweep()
    outbox = api.engine.store.outbox
    (channel,) = await outbox.due_channels(10)
    (sent,) = await outbox.take(api.tenant, [(channel.channel, 1)], lease_seconds=30, fresh_secret="")
    await outbox.settle(api.tenant, DeliveryResult(sent.id, sent.grab, Outcome(DeliveryStatus.FAILED, 5.0), 500, None))


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_the_server_produces_every_metric_and_label_that_the_board_and_the_alerts_name(api: Api) -> None:
    await operate(api)
    text = (await api.get("/metrics")).text
    assert promtool("check", "metrics", text=text) == ""
    produced: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            produced.setdefault(sample.name, []).append(dict(sample.labels))
    alerts = [rule["expr"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    named = set[str]()
    for query in [*expressions(), *alerts]:
        grouped = {label for labels in GROUPED.findall(query) for label in re.split(r",\s*", labels)} - SCRAPED
        for name, selectors in METRIC.findall(query):
            named.add(name)
            wanted = SELECTOR.findall(selectors)
            assert [labels for labels in produced.get(name, []) if grouped <= labels.keys() and fits(labels, wanted)], (
                query
            )
    undrawn = {name for name in produced if not name.endswith(("_count", "_sum"))} - named
    assert undrawn == UNDRAWN


def fits(labels: dict[str, str], wanted: list[tuple[str, str, str]]) -> bool:
    """Whether a sample has these labels; the server that a test starts answers nothing with 5xx."""
    return all(
        label in labels and (operator == "=~" or (labels[label] == value) == (operator == "="))
        for label, operator, value in wanted
    )
