"""The command line where a terminal is narrow, a standard file is closed, or the database is named on the spot."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from interlock.cli import output
from tests.support.eventually import RETRY_SECONDS

MODULE = """
import interlock

app = interlock.App("sqlite:///unused.db")

@app.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""


def interlock(directory: Path, words: str, ends: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command by a shell that closes some of its standard files."""
    return subprocess.run(
        f"{shlex.quote(sys.executable)} -m interlock {words} {ends}",
        shell=True,
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=RETRY_SECONDS,
        env=os.environ | {"INTERLOCK_DATABASE": "sqlite:///jobs.db"},
    )


def test_a_worker_without_standard_streams_works_for_the_given_database_and_tenant(
    tmp_path: Path,
) -> None:
    (tmp_path / "shop.py").write_text(MODULE)
    where = "--database sqlite:///other.db --tenant acme"
    assert interlock(tmp_path, f"migrate {where.partition(' --tenant')[0]}").returncode == 0
    added = interlock(tmp_path, f'jobs add greet \'{{"name": "ada"}}\' {where} --json')
    worker = interlock(tmp_path, f"worker shop:app --drain {where}", "<&- >&-")
    assert worker.returncode == 0, worker.stderr
    waited = interlock(tmp_path, f"jobs wait {json.loads(added.stdout)['id']} {where}")
    assert waited.stdout == '"hello ada"\n'
    assert not (tmp_path / "unused.db").exists()


def test_a_command_with_closed_output_still_does_its_work(tmp_path: Path) -> None:
    interlock(tmp_path, "migrate")
    done = interlock(tmp_path, "jobs add greet", ">&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert [job["type"] for job in json.loads(interlock(tmp_path, "jobs list --json").stdout)["items"]] == ["greet"]


def test_a_file_that_cannot_be_created_is_reported_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    done = interlock(tmp_path, "jobs list --database sqlite:///loop")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.startswith("interlock: loop cannot be made")


def test_an_id_is_not_wrapped_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    id = "01a1e519-dcb0-71aa-800d-623a096e781d"
    output.table(["seq", "id", "type", "status"], [[1, id, "research", "queued"]])
    assert id in capsys.readouterr().out
