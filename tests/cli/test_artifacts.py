"""`interlock artifacts` from outside: files are found by name or id, and come whole or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from interlock import assemble
from interlock.domain.artifact import Artifact, File, Holder, Link
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.wire import job_request
from tests.cli.test_cli import CLI, cli
from tests.support.eventually import RETRY_SECONDS

__all__ = ["cli"]  # the fixture

CONTENT = bytes(range(256)) * 4096
NAME = "../../../tmp/\u202ereport.bin"


@pytest.fixture
def attached(cli: CLI, monkeypatch: pytest.MonkeyPatch) -> list[Artifact]:
    """A file with a name that looks like a path, and a link."""
    monkeypatch.setenv("INTERLOCK_ARTIFACTS", str(cli.directory / "kept"))

    async def attach() -> list[Artifact]:
        async with assemble.open_engine(cli.database, artifacts=str(cli.directory / "kept")) as engine:
            await engine.jobs.enqueue(local(), job_request({"type": "t"}))
            (job,) = await engine.leases.claim("default", ClaimFilter("w"))
            holder = Holder(job.id, job.fence, "w")
            things: list[File | Link] = [
                File(NAME.replace("\u202e", ""), CONTENT, "application/zip"),
                Link("docs", "https://example.com/d"),
            ]
            return await engine.artifacts.attach("default", holder, things)

    return asyncio.run(attach())


def fetched(cli: CLI, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "interlock", "artifacts", "get", *arguments],
        capture_output=True,
        timeout=RETRY_SECONDS,
        cwd=cli.directory,
        env=os.environ | {"INTERLOCK_DATABASE": cli.database},
    )


def test_files_are_listed_and_downloaded_by_name_and_id(cli: CLI, attached: list[Artifact]) -> None:
    file, link = attached
    items = cli.json("artifacts", "list", file.job_id)["items"]
    assert isinstance(items, list)
    assert {item["id"]: (item["size"], item["url"]) for item in items} == {
        file.id: (len(CONTENT), f"/v1/jobs/{file.job_id}/artifacts/{file.id}"),
        link.id: (None, link.url),
    }
    assert fetched(cli, file.job_id, file.name).stdout == CONTENT
    assert cli("artifacts", "get", file.job_id, file.id, "-o", "here.bin").returncode == 0
    assert (cli.directory / "here.bin").read_bytes() == CONTENT
    assert json.loads(cli("artifacts", "get", file.job_id, file.id, "-o", "x", "--json").stdout)["output"] == "x"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_a_failed_download_explains_why_and_leaves_no_file(cli: CLI, attached: list[Artifact]) -> None:
    file, link = attached
    assert fetched(cli, file.job_id, link.id).returncode == 4
    assert fetched(cli, file.job_id, "unknown").returncode == 3
    assert fetched(cli, "01890000-0000-7000-8000-000000000000", file.id).returncode == 3
    assert fetched(cli, file.job_id, file.id, "--json").returncode == 4
    (stored,) = [path for path in (cli.directory / "kept").rglob("*") if path.is_file()]
    stored.chmod(0o600)
    stored.write_bytes(CONTENT[:-1] + b"x")
    damaged = fetched(cli, file.job_id, file.id, "-o", "damaged.bin")
    assert (damaged.returncode, b"not those that were stored" in damaged.stderr) == (1, True)
    assert not [path for path in Path(cli.directory).iterdir() if path.name.startswith("damaged")]
