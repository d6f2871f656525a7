"""The guide to shards works as written, on two databases without Interlock."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg

from interlock.config import PREFIX
from tests.support.console import ID, without_ids_and_times
from tests.support.postgres import OWNER, Postgres
from tests.test_docs import DOCS, blocks


async def make(postgres: Postgres, *names: str) -> None:
    admin = await asyncpg.connect(postgres.dsn())
    try:
        for name in names:
            await admin.execute(f"create database {name} owner {OWNER}")
    finally:
        await admin.close()


async def drop(postgres: Postgres, *names: str) -> None:
    admin = await asyncpg.connect(postgres.dsn())
    try:
        for name in names:
            await admin.execute(f"drop database if exists {name} with (force)")
    finally:
        await admin.close()


def test_the_guide_to_shards_works_as_written(postgres: Postgres, tmp_path: Path) -> None:
    text = (DOCS / "how-to/shard.md").read_text()
    (settings,), (program,) = blocks(text, "toml"), blocks(text, "python")
    databases = [f"interlock_guide_{os.getpid()}_{letter}" for letter in "ab"]
    ours = iter(databases)
    (tmp_path / "interlock.toml").write_text(
        re.sub(r'"postgresql://[^"]+"', lambda _: f'"{postgres.dsn(next(ours))}"', settings)
    )
    (tmp_path / "letters.py").write_text(program)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    reported = re.findall(r"^\$ (.+)\n((?:(?!\$ ).+\n)*)", "".join(blocks(text, "console")), re.MULTILINE)
    assert len(reported) == 7
    here: dict[str, str] = {}  # ids of the page, and what they are in this run
    asyncio.run(make(postgres, *databases))
    try:
        for command, encoded in [("interlock migrate", None), *reported]:
            done = subprocess.run(
                command, shell=True, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            if encoded is not None:
                here |= zip(ID.findall(encoded), ID.findall(done.stdout), strict=True)
                assert without_ids_and_times(done.stdout) == without_ids_and_times(encoded)
        assert len(here) == 1
    finally:
        asyncio.run(drop(postgres, *databases))
