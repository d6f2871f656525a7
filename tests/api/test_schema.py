"""The service against its own OpenAPI document: what it promises, it keeps; what it forbids, it refuses.

INTERLOCK_TEST_EXAMPLES sets how many requests are tried for each operation.
"""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import checks

from interlock.api import openapi
from interlock.api.app import create_app, routes
from interlock.api.options import Options
from interlock.api.routes import Route
from interlock.api.server import Server, listen, url_of
from interlock.engine.destination import Outside
from interlock.engine.engine import Engine
from interlock.storage.contract import Store
from interlock.storage.merged import merged
from interlock.storage.objects.directory import Directory
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.sqlite.store import SQLiteStore
from tests.api.rig import resolved_to_nowhere
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN, ENGINES

EXAMPLES = int(os.environ.get("INTERLOCK_TEST_EXAMPLES", "12"))
# Rules that no schema can tell (a name is visible, a parent exists) make us refuse what the document would allow; and
# with auth off there is no credential to forget.
NOT_FOR_US = [checks.positive_data_acceptance, checks.ignored_auth, checks.unsupported_method]


@pytest.fixture(scope="module", params=ENGINES)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, postgres: Postgres
) -> Iterator[str]:
    """A server in a thread of its own, since the client blocks."""
    directory = tmp_path_factory.mktemp("schema")
    place = str(directory / "x.db") if request.param == "sqlite" else request.getfixturevalue("database")
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def serve() -> None:
        store: Store
        if request.param == "sqlite":
            store = await SQLiteStore.open(place)
        else:
            store = await PostgresStore.open(postgres.dsn(place, user=APP_LOGIN), size=4)
        outside = Outside(resolve=resolved_to_nowhere)
        engine = Engine(merged(store), objects=Directory(Path(directory) / "artifacts"), outside=outside)
        with listen("127.0.0.1", 0) as listening:
            found["server"] = Server(create_app(engine, Options(tenant="schema")), listening)
            found["address"] = url_of(listening)
            ready.set()
            await found["server"].serve()
        await engine.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield found["address"]
    found["server"].should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def tried() -> list[Route]:
    """Streams have no end, so they are not tried like this."""
    return [route for route in routes() if not route.name.startswith("stream_")]


@pytest.fixture(scope="module")
def schema() -> Any:
    return schemathesis.openapi.from_dict(openapi.document(routes()))


@pytest.mark.parametrize("route", tried(), ids=lambda route: route.name)
def test_every_operation_keeps_to_the_document(address: str, schema: Any, route: Route) -> None:
    operation = schema[route.path][route.method]

    @seed(20270101)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy())
    def conforms(case: Any) -> None:
        without_waiting(case)
        case.call_and_validate(base_url=address, excluded_checks=NOT_FOR_US)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        conforms()


def without_waiting(case: Any) -> None:
    """Long polls answer at once."""
    for part in (case.query, case.body):
        if isinstance(part, dict) and isinstance(part.get("wait_seconds"), (int, float)):
            part["wait_seconds"] = 0
