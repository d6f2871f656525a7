"""The bell of a PostgreSQL database, as its connections come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.storage.postgres.nodes import Nodes
from interlock.storage.postgres.notify import CHANNEL, Bell
from tests.support.eventually import PATIENCE_SECONDS, eventually
from tests.support.postgres import Postgres

SOMEBODY_ELSE = -1


async def test_a_ring_that_is_heard_as_the_connection_is_closed_is_a_ring(
    database: str, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = Nodes.connect
    made: list[Any] = []

    async def remembered(nodes: Nodes, **options: Any) -> Any:
        made.append(await connect(nodes, **options))
        return made[-1]

    async def listens() -> bool:
        return bool(made) and CHANNEL in made[0]._listeners

    monkeypatch.setattr(Nodes, "connect", remembered)
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    bell = Bell(postgres.dsn(database))
    try:
        rung = bell.event()
        await eventually(listens)
        made[0]._process_notification(SOMEBODY_ELSE, CHANNEL, "")
        made[0].terminate()
        await asyncio.wait_for(rung.wait(), PATIENCE_SECONDS)
    finally:
        await bell.close()
    assert wrong == []
