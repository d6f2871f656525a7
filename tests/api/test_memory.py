"""What a request needed is freed with its answer: garbage in cycles would wait for a collection, and cost it."""

from __future__ import annotations

import gc

import pytest

from interlock.api.service import Trail
from tests.api.rig import Api

REQUESTS = 20


@pytest.fixture
def engine() -> str:
    """The way of a request through the server does not depend on the engine."""
    return "sqlite"


async def test_finished_requests_leave_nothing_in_memory_except_the_last_of_a_connection(api: Api) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(REQUESTS):
            await api.enqueue()
            api.ok(await api.get("/v1/me"))
            assert (await api.send("/v1/jobs", b"{")).status_code == 400
        left = sum(isinstance(thing, Trail) for thing in gc.get_objects())
    finally:
        gc.enable()
    assert left < REQUESTS
