"""Messages: the same results and errors from every client."""

from __future__ import annotations

import pytest

from interlock.errors import Invalid, MessageConflict, NotFound, TooLarge
from tests.contract_clients.remote_cli import NEVER, ClientUnderTest


async def test_messages_are_sent_and_read(remote: ClientUnderTest) -> None:
    jobs, id = remote.client.jobs, await remote.add()
    first = await jobs.send(id, "go", '{"n": 1.10}', id="m1")
    second = await jobs.send(id, "other")
    assert (first.seq, first.id, first.name, first.payload) == (1, "m1", "go", '{"n": 1.10}')
    assert (second.seq, second.payload) == (2, None)
    assert await jobs.send(id, "go", '{"n": 1.10}', id="m1") == first
    assert await jobs.messages(id) == [first, second]
    assert await jobs.messages(id, name="other") == await jobs.messages(id, after=1) == [second]
    with pytest.raises(MessageConflict) as caught:
        await jobs.send(id, "go", "2", id="m1")
    assert (caught.value.job_id, caught.value.message_id) == (id, "m1")


async def test_wrong_messages_are_rejected(remote: ClientUnderTest) -> None:
    jobs, id = remote.client.jobs, await remote.add()
    with pytest.raises(Invalid):
        await jobs.send(id, "")
    with pytest.raises(TooLarge):
        await jobs.send(id, "go", f'"{"x" * 300_000}"')
    with pytest.raises(NotFound):
        await jobs.send(NEVER, "go")
    with pytest.raises(NotFound):
        await jobs.messages(NEVER)
