"""Notification channels through every client: in process and over HTTP."""

from __future__ import annotations

import pytest

from interlock.domain.channel import Address, ChannelTest
from interlock.errors import Invalid, NotFound
from interlock.wire.channels import ChannelRequest
from tests.contract_clients.remote_cli import ClientUnderTest

MAIL = ChannelRequest(
    kind="email", host="192.0.2.1", sender="interlock@example.com", recipients=["ada@example.com"], types=["a"],
    tags=["b"], min_risk="high", min_interval_seconds=5.0,
)  # fmt: skip


async def test_a_channel_is_created_replaced_listed_and_deleted(remote: ClientUnderTest) -> None:
    channels = remote.client.channels
    slack = await channels.set("ops", ChannelRequest(kind="slack", url="https://example.com/secret"))
    assert (slack.address, slack.types, slack.tags, slack.min_risk) == (Address("example.com"), None, None, None)
    assert slack.events == ("approval.requested", "job.dead_letter", "worker.stale", "budget.spent")
    assert slack == await channels.get("ops")
    given = ChannelRequest(
        kind="teams", url="https://example.com/x", types=["a"], tags=["b"], min_risk="high", min_interval_seconds=5.0
    )
    other = await channels.set("other", given)
    assert (other.types, other.tags, other.min_risk, other.min_interval_seconds) == (("a",), ("b",), "high", 5.0)
    assert await channels.list() == [slack, other]
    assert await channels.list(after="ops", limit=1) == [other]
    await channels.delete("ops")
    with pytest.raises(NotFound, match="channel"):
        await channels.get("ops")


async def test_a_private_destination_is_rejected_with_its_field(remote: ClientUnderTest) -> None:
    with pytest.raises(Invalid) as caught:
        await remote.client.channels.set("ops", MAIL)
    assert caught.value.pointer == "/host"
    with pytest.raises(Invalid) as caught:
        await remote.client.channels.set("ops", ChannelRequest(kind="slack", url="https://127.0.0.1/"))
    assert caught.value.pointer == "/url"


async def test_a_test_message_reports_why_it_was_not_delivered(remote: ClientUnderTest) -> None:
    await remote.client.channels.set("ops", ChannelRequest(kind="slack", url="https://nosuch.invalid/"))
    tested = await remote.client.channels.test("ops")
    assert tested in (ChannelTest(False, None, "cannot_resolve"), ChannelTest(False, None, "cannot_connect"))
    with pytest.raises(NotFound, match="channel"):
        await remote.client.channels.test("nosuch")
