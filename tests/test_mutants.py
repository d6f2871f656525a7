"""The tool that checks the tests: it must report faults that the tests catch, miss, and that no longer apply."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
TABLES: Final = ROOT / "tools" / "mutants"
LEAST: Final = 100
WORDS: Final = [sys.executable, str(ROOT / "tools" / "mutants.py")]


def fault(name: str, old: str, new: str) -> str:
    given = {"name": name, "file": "src/interlock/domain/retry.py", "old": old, "new": new}
    fields = "".join(f"{field} = {json.dumps(value)}\n" for field, value in given.items())
    return f'[[fault]]\n{fields}tests = ["tests/domain/test_retry.py"]\n'


def test_faults_are_reported_as_caught_missed_or_stale(tmp_path: Path) -> None:
    table = [
        fault("wrong", "** (attempt - 1)", "** attempt"),
        fault("harmless", '"""Backoff: ', '"""Backoff is '),
        fault("gone", "no such text", "another"),
    ]
    (tmp_path / "faults.toml").write_text("\n".join(table))
    done = subprocess.run([*WORDS, "--tables", str(tmp_path)], capture_output=True, text=True)
    verdicts = {line.split()[-1].rstrip(":"): line.split()[0] for line in done.stdout.splitlines() if " s  " in line}
    assert verdicts == {"wrong": "caught", "harmless": "missed"}, done.stdout + done.stderr
    assert "stale   gone: the old text occurs 0 times" in done.stdout
    assert "1 caught, 1 missed, 0 error, 0 hung, 1 stale" in done.stdout
    assert done.returncode == 1


def test_there_are_at_least_a_hundred_faults_and_all_apply_to_the_tree() -> None:
    faults = [one for table in TABLES.glob("*.toml") for one in tomllib.loads(table.read_text())["fault"]]
    assert len(faults) >= LEAST
    listed = subprocess.run([*WORDS, "--list"], capture_output=True, text=True)
    stale = [line for line in listed.stdout.splitlines() if line.startswith("stale")]
    assert (stale, listed.returncode) == ([], 0)
