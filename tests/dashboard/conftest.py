"""Fixtures: a served dashboard over either engine, and a real browser to look at it with."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from interlock.api.app import create_app
from interlock.api.options import Options
from interlock.api.server import Server, listen, url_of
from interlock.dashboard.app import Dashboard
from interlock.dashboard.sessions import Sessions
from interlock.dashboard.sign_in_throttle import SignInThrottle
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.sign_in import Provider
from interlock.storage.batching import batched
from interlock.storage.contract import Store
from interlock.storage.object_store.filesystem import FileObjects
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from interlock.wire import TokenRequest
from tests.api.rig import resolved_to_nowhere
from tests.contract.conftest import database, place  # noqa: F401 - fixtures
from tests.dashboard import scene
from tests.dashboard.scene import Scene
from tests.support.eventually import RETRY_SECONDS
from tests.support.loops import share_one_loop
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ManualClock

TIMEOUT_MS: Final = 1000 * RETRY_SECONDS
expect.set_options(timeout=TIMEOUT_MS)
KEY: Final = b"the key of every server of one database"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests that use the browser or a server run in one event loop."""
    ours = (item for item in items if Path(__file__).parent in item.path.parents)
    share_one_loop(item for item in ours if {"chromium", "store"} & {*getattr(item, "fixturenames", ())})


class Ticks:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Board:
    """A dashboard that is being served."""

    url: str
    engine: Engine
    clock: ManualClock
    ticks: Ticks

    async def token(self, *roles: str, tenant: str) -> str:
        """The text of a new token."""
        admin = Principal(tenant, user("test"), ROLES)
        return (await self.engine.tokens.create(admin, TokenRequest(roles=list(roles)))).text


@pytest_asyncio.fixture(loop_scope="session")
async def store(engine: str, place: str, clock: ManualClock, postgres: Postgres) -> Store:  # noqa: F811
    """A store that is closed with the engine that is served over it."""
    if engine == "sqlite":
        return await SQLiteStore.open(place, clock=clock)
    return await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=4, clock=clock)


@asynccontextmanager
async def serving(
    store: Store, clock: ManualClock, directory: Path, *, auth: bool, tenant: str
) -> AsyncIterator[Board]:
    """An engine that is served for one test."""
    engine = Engine(batched(store), objects=FileObjects(directory), outside=OutboundClient(resolve=resolved_to_nowhere))
    try:
        async with a_server(engine, clock, Ticks(), auth=auth, tenant=tenant) as board:
            yield board
    finally:
        await engine.close()


@asynccontextmanager
async def a_server(
    engine: Engine,
    clock: ManualClock,
    ticks: Ticks,
    *,
    auth: bool,
    tenant: str,
    key: bytes = KEY,
    provider_for: Callable[[str], Awaitable[Provider]] | None = None,
    accepts_tokens: bool = True,
    trace_url: str | None = None,
) -> AsyncIterator[Board]:
    """The API and the dashboard behind one address, as `interlock serve` runs them."""
    sessions, throttle = Sessions(key, seconds=ticks), SignInThrottle(seconds=ticks)
    with listen("127.0.0.1", 0) as listening:
        provider = None if provider_for is None else await provider_for(url_of(listening))
        dashboard = Dashboard(
            engine, auth=auth, tenant=tenant, sessions=sessions, throttle=throttle, provider=provider,
            accepts_tokens=accepts_tokens, trace_url=trace_url,
        )  # fmt: skip
        server = Server(create_app(engine, Options(auth=auth, tenant=tenant), mounts=dashboard.mounts), listening)
        task = asyncio.create_task(server.serve())
        try:
            yield Board(url_of(listening), engine, clock, ticks)
        finally:
            server.should_exit = True
            await task


@pytest.fixture
def tenant(request: pytest.FixtureRequest) -> str:
    """A separate tenant for each test: those of one file share a PostgreSQL database."""
    return f"tenant-{abs(hash(request.node.nodeid)) % 10**9}"


@pytest_asyncio.fixture(loop_scope="session")
async def board(store: Store, clock: ManualClock, tmp_path: Path, tenant: str) -> AsyncIterator[Board]:
    async with serving(store, clock, tmp_path / "artifacts", auth=False, tenant=tenant) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="session")
async def guarded(store: Store, clock: ManualClock, tmp_path: Path, tenant: str) -> AsyncIterator[Board]:
    """The same with auth on."""
    async with serving(store, clock, tmp_path / "artifacts", auth=True, tenant=tenant) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="session")
async def stage(board: Board, tenant: str) -> Scene:
    return await scene.play(board.engine, tenant)


@pytest.fixture
def album(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a test leaves its screenshots: for people in INTERLOCK_TEST_ARTIFACTS if that is set, else with its files."""
    kept = os.environ.get("INTERLOCK_TEST_ARTIFACTS")
    album = Path(kept) / "dashboard" / request.node.name if kept else tmp_path / "screenshots"
    album.mkdir(parents=True, exist_ok=True)
    return album


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def launched() -> AsyncIterator[Browser]:
    """One browser for the tests of this process: to start it costs more than most of them."""
    found = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium")
    assert found is not None, "the dashboard is tested in Chromium: install it, or name it in CHROMIUM_PATH"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=TIMEOUT_MS)
        try:
            yield browser
        finally:
            await browser.close()


async def patient(chromium: Browser, **options: Any) -> BrowserContext:
    """A new context that waits for as long as a busy machine may take."""
    context = await chromium.new_context(**options)
    context.set_default_timeout(TIMEOUT_MS)
    return context


async def follow(leads_on: Locator) -> None:
    """Press a link or a button, and wait for the page it leads to: a click returns before that has come."""
    async with leads_on.page.expect_navigation():
        await leads_on.click()


async def press_at_once(page: Page, *keys: str) -> None:
    """Keys that belong together, without the time between them that a busy machine would take."""
    dispatch = (
        "keys => keys.forEach(key => document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})))"
    )
    await page.evaluate(dispatch, list(keys))


@pytest_asyncio.fixture(loop_scope="session")
async def chromium(launched: Browser) -> AsyncIterator[Browser]:
    """A real browser without a page; without one these tests fail, they are not skipped."""
    yield launched
    for context in tuple(launched.contexts):
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(chromium: Browser) -> AsyncIterator[Page]:
    """A page without script."""
    context = await patient(chromium, java_script_enabled=False)
    yield await context.new_page()
    await context.close()
