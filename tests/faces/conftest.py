"""Fixtures: a server with all faces turned on, called with plain HTTP; with auth off, and with auth on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from interlock.api.options import Options
from interlock.storage.contract import Store
from interlock.storage.objects.directory import Directory
from tests.api.conftest import place, store  # noqa: F401 - fixtures
from tests.api.rig import Api, serving
from tests.contract.conftest import database  # noqa: F401 - a fixture
from tests.support.stores import ManualClock

FACES = ("codeq", "moonmind", "mcp")
_numbers = itertools.count(1)


@pytest.fixture
async def api(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """Auth is off: whoever calls may do everything."""
    options = Options(tenant=f"face-{next(_numbers)}", faces=FACES)
    async with serving(store, clock, options, objects=Directory(tmp_path / "artifacts")) as served:
        yield served


@pytest.fixture
async def guarded(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """Auth is on, and this caller has no credential yet."""
    options = Options(auth=True, tenant=f"face-{next(_numbers)}", faces=FACES)
    async with serving(store, clock, options, objects=Directory(tmp_path / "artifacts")) as served:
        yield served
