"""The bell of a PostgreSQL database, as its connections come and go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from interlock.storage.postgres.hosts import Nodes
from interlock.storage.postgres.notify import CHANNEL, Notifier
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.stores import APP_LOGIN

OTHER_PROCESS = -1


async def test_a_notification_received_as_the_connection_closes_counts(
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
    bell = Notifier(postgres.dsn(database, user=APP_LOGIN))
    try:
        rung = bell.event("acme")
        await eventually(listens)
        made[0]._process_notification(OTHER_PROCESS, CHANNEL, "")
        made[0].terminate()
        await asyncio.wait_for(rung.wait(), RETRY_SECONDS)
    finally:
        await bell.close()
    assert wrong == []


@pytest.mark.parametrize("payload", ["", "{", '"acme"', "[1]"])
async def test_a_notification_without_a_tenant_is_for_all(payload: str) -> None:
    bell = Notifier("postgresql:///nowhere")
    rung = bell._signal.event("acme")
    bell._hear(0, None, OTHER_PROCESS, CHANNEL, payload)
    assert rung.is_set()


@pytest.mark.parametrize("many", [1, 5000])
async def test_a_notification_for_more_tenants_than_can_be_named_reaches_them_all(
    database: str, postgres: Postgres, many: int
) -> None:
    here, there = Notifier(postgres.dsn(database, user=APP_LOGIN)), Notifier(postgres.dsn(database, user=APP_LOGIN))
    names = [f"tenant-{i}" for i in range(many)]
    waiting = [there.event(name) for name in names]
    try:

        async def all_heard() -> bool:
            for name in names:  # a hint may be lost while a listener is still connecting
                here.ring(name)
            await asyncio.sleep(0.05)
            return all(rung.is_set() for rung in waiting)

        await eventually(all_heard)
    finally:
        await here.close()
        await there.close()
