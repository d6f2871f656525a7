"""The files in deploy/: manifests that a cluster accepts, and commands that the program understands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from interlock.config import Settings
from tests.support.scratch import LONG

ROOT = Path(__file__).resolve().parent.parent
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").glob("*.yaml"))
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def pods() -> list[dict[str, Any]]:
    return [document["spec"]["template"]["spec"] for document in documents() if "template" in document.get("spec", {})]


def commands() -> list[list[str]]:
    """Every command that the manifests, the units and compose.yaml run, without the program itself."""
    found = [container["args"] for pod in pods() for container in pod["containers"]]
    for unit in map(unit_of, UNITS):
        service = unit["Service"]
        found += [shlex.split(service[key])[1:] for key in ("execstartpre", "execstart") if key in service]
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    found += [service["command"] for service in compose["services"].values() if service.get("build")]
    return found


def unit_of(path: Path) -> ConfigParser:
    unit = ConfigParser(interpolation=None, strict=False)
    unit.read_string(path.read_text())
    return unit


@pytest.mark.parametrize("version", ["1.27", "1.31", "1.34"])
def test_the_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    assert {document["kind"] for document in documents()} >= {"Deployment", "Job", "Service"}
    for document in documents():
        kubernetes_validate.validate(document, version, strict=True)


def test_every_container_runs_without_privileges() -> None:
    assert pods()
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


def test_a_selector_finds_the_pods_of_its_deployment() -> None:
    labels = [d["spec"]["template"]["metadata"]["labels"] for d in documents() if d["kind"] == "Deployment"]
    for document in documents():
        selector = document.get("spec", {}).get("selector")
        if selector:
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= one.items() for one in labels) == 1, document["kind"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_program_knows_every_command_and_option(command: list[str]) -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "interlock", command[0], "--help"], capture_output=True, text=True, check=True
    )
    for option in command[1:]:
        if option.startswith("--"):
            assert re.search(rf"{option}\b", answer.stdout), option


def test_every_environment_variable_is_a_setting() -> None:
    text = "".join(path.read_text() for path in [*MANIFESTS, *UNITS, ROOT / "compose.yaml"])
    named = {name.removesuffix("_FILE").lower() for name in re.findall(r"\bINTERLOCK_([A-Z_]+)", text)}
    assert "database" in named
    assert named <= {field.name for field in fields(Settings)}


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_stops_later_than_the_program_it_runs(path: Path) -> None:
    service = unit_of(path)["Service"]
    grace = re.search(r"--grace (\d+)", service["execstart"])
    assert int(service["timeoutstopsec"]) > int(grace[1] if grace else 30)
    assert service["dynamicuser"] == "yes"


if os.environ.get(LONG):  # needs Debian's package systemd

    def test_systemd_accepts_the_units(tmp_path: Path) -> None:
        tool = shutil.which("systemd-analyze")
        assert tool, "no systemd-analyze: run dev.py prove as root on Debian, which installs it"
        program = str(Path(sys.executable).with_name("interlock"))
        copies = []
        for path in UNITS:
            copies.append(tmp_path / path.name)
            copies[-1].write_text(path.read_text().replace("/opt/interlock/bin/interlock", program))
        done = subprocess.run([tool, "verify", *map(str, copies)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
