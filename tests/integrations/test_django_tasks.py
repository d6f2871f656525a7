"""Tasks of a real site of Django, whose tables and jobs are on both databases."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import interlock
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def site(url: str, postgres: Postgres) -> dict[str, str]:
    """The environment of a site that may create its tables beside the jobs."""
    async with interlock.App(url) as app:
        await (await app._client()).now()  # the database is there
    if not url.startswith("sqlite"):
        admin = await asyncpg.connect(postgres.dsn(url.rpartition("/")[2].partition("?")[0]))
        await admin.execute(f"grant create on schema public to {APP_LOGIN}")
        await admin.close()
    return {**os.environ, "JOBS": url, "DJANGO_SETTINGS_MODULE": "tests.integrations.django_site.settings"}


async def run(site: dict[str, str], *command: str) -> tuple[int, str, str]:
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        cwd=ROOT,
        env=site,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = await program.communicate()
    return program.returncode or 0, output.decode(), errors.decode()


async def test_tasks_run_once_with_results_and_commit_with_the_site_where_the_database_allows_it(
    site: dict[str, str],
) -> None:
    code, output, errors = await run(site, "tests.integrations.django_site.scenario")
    assert code == 0, errors
    seen: dict[str, Any] = json.loads(output.splitlines()[-1])
    is_postgres = not site["JOBS"].startswith("sqlite")
    assert seen == {
        "before": ["READY", None, 0],
        "kept": ["SUCCESSFUL", 3, 1],
        "lost": "does not exist" if is_postgres else ["SUCCESSFUL", 7, 1],
        "shouted": [["SUCCESSFUL", "HI", 1], "mail", 5, "HI"],
        "remembered": ["SUCCESSFUL", {"attempt": 1, "notes": 1}, 1],
        "failed": [["FAILED", None, 1], "ValueError", True],
        "sold": "tests.integrations.django_site.tasks.OutOfStock",
        "later": ["READY", None, 0],
        "unknown": ["does not exist", "does not exist"],
        "notes": ["by task", "kept"],
    }


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_a_database_that_cannot_hold_the_transaction_is_reported_by_check(site: dict[str, str]) -> None:
    site["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django_site.wrong_settings"
    code, _, errors = await run(site, "django", "check")
    assert code != 0
    assert "interlock.E002" in errors
    assert "leave it out" in errors
