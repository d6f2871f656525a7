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

from tests.api.rig import Api

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
BOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "interlock.json").read_text())
METRIC = re.compile(r"\binterlock_[a-z_]+")


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


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_the_server_exposes_every_metric_that_the_board_and_the_alerts_name(api: Api) -> None:
    await api.enqueue()
    (job,) = await api.claim()
    await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"]})
    text = (await api.get("/metrics")).text
    assert promtool("check", "metrics", text=text) == ""
    exposed = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    histograms = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE") and "histogram" in line}
    exposed |= {f"{name}_bucket" for name in histograms}
    named = set(METRIC.findall("\n".join([*expressions(), ALERTS.read_text()])))
    assert named
    assert named - exposed == set()
