"""Fixtures: a server with all protocol adapters enabled, called with plain HTTP; with auth off, and with auth on."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from interlock.api.options import Options
from interlock.engine.outbound_http import OutboundClient
from interlock.faces import load_face
from interlock.faces.codeq.adapter import CodeqAdapter
from interlock.faces.codeq.webhooks import CodeqFormat
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.wire import Limits
from tests.adapters.codeq_hooks import HERE, SECRET
from tests.api.conftest import place, store  # noqa: F401 - fixtures
from tests.api.rig import Api, serving
from tests.contract.conftest import database  # noqa: F401 - a fixture
from tests.support.eventually import RETRY_SECONDS
from tests.support.postgres import OWNER, Postgres
from tests.support.receiver import Receiver, receiver
from tests.support.stores import ManualClock

ADAPTERS = [load_face(name)() for name in ("codeq", "moonmind", "mcp")]
_numbers = itertools.count(1)


@pytest.fixture
async def api(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """Auth is off: every caller may do everything."""
    options = Options(tenant=f"face-{next(_numbers)}", faces=ADAPTERS)
    async with serving(store, clock, options, objects=FileObjects(tmp_path / "artifacts")) as served:
        yield served


@pytest.fixture
async def guarded(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncIterator[Api]:  # noqa: F811
    """Auth is on, and this caller has no credential yet."""
    options = Options(auth=True, tenant=f"face-{next(_numbers)}", faces=ADAPTERS)
    async with serving(store, clock, options, objects=FileObjects(tmp_path / "artifacts")) as served:
        yield served


@pytest.fixture
async def nothing_is_due(engine: str, place: str, postgres: Postgres) -> None:  # noqa: F811
    """What is due is delivered, whosever it is, so nothing may be left of the tests before."""
    if engine == "postgres":
        owner = await asyncpg.connect(postgres.dsn(place, user=OWNER))
        await owner.execute("truncate interlock.outbox, interlock.subscription")
        await owner.close()


@pytest.fixture
async def open_api(
    store: Store,  # noqa: F811
    nothing_is_due: None,
    clock: ManualClock,
    tmp_path: Path,
) -> AsyncIterator[Api]:
    """Auth is off, and webhooks may reach this machine."""
    async with serving(
        store, clock, Options(tenant=f"hooks-{tmp_path.name}", faces=[CodeqAdapter()]),
        objects=FileObjects(tmp_path / "artifacts"), limits=Limits(webhooks=HERE),
        outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS), webhook_formats={"codeq": CodeqFormat(SECRET)}.get,
    ) as served:  # fmt: skip
        yield served


@pytest.fixture
async def closed_api(
    store: Store,  # noqa: F811
    nothing_is_due: None,
    clock: ManualClock,
    tmp_path: Path,
) -> AsyncIterator[Api]:
    """Auth is on, and webhooks may reach this machine; there is no secret of codeQ's."""
    async with serving(
        store, clock, Options(auth=True, tenant=f"hooks-{tmp_path.name}", faces=[CodeqAdapter()]),
        limits=Limits(webhooks=HERE), outside=OutboundClient(HERE, deadline_seconds=RETRY_SECONDS),
        webhook_formats={"codeq": CodeqFormat()}.get,
    ) as served:  # fmt: skip
        yield served


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as made:
        yield made
