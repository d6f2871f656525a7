"""Notification channels: the exact messages of each kind at real receivers, on both engines."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook

from interlock.domain.approval import RequestApproval
from interlock.domain.budget import OnExceed, Per
from interlock.domain.channel import EVENTS, ChannelTest, NotificationChannel
from interlock.domain.decide import CompleteJob, FailJob
from interlock.domain.job import Job
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.domain.webhook import DELAYS_SECONDS, DeliveryFilter, DeliveryStatus, secret_of
from interlock.engine.engine import Engine
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.webhook_sender import Pace, Sender
from interlock.errors import Forbidden, Invalid, NotFound
from interlock.storage.contract import Store
from interlock.wire import Limits
from interlock.wire.budgets import BudgetRequest
from interlock.wire.channels import channel_request, channel_to_dict
from interlock.wire.limits import LimitRequest, Rate
from tests.engine.deliveries import HERE, after, enqueue, statuses
from tests.engine.test_outbound_http import certificate
from tests.support.eventually import RETRY_SECONDS
from tests.support.mail_server import PASSWORD, USERNAME, MailServer, mail_server
from tests.support.receiver import Receiver, hang, receiver, responds
from tests.support.stores import ManualClock

SITE = "https://interlock.example"
AT = "2027-01-15T08:00:00.000000Z"


@pytest.fixture
async def queue(store: Store) -> AsyncIterator[Engine]:
    """An engine that may reach this machine and knows its own URL."""
    outside = OutboundClient(HERE, deadline_seconds=RETRY_SECONDS)
    engine = Engine(store, Limits(webhooks=HERE), outside=outside, public_url=SITE)
    yield engine
    await engine.maintenance.stop()
    await engine.sender.stop()
    await engine.notifier.close()
    await engine.outside.close()


async def set_channel(queue: Engine, who: Principal, name: str = "ops", /, **fields: Any) -> NotificationChannel:
    return await queue.channels.set(who, name, channel_request(fields))


async def set_mail(queue: Engine, who: Principal, server: MailServer, **fields: Any) -> NotificationChannel:
    given: dict[str, Any] = {
        "kind": "email", "host": "127.0.0.1", "port": server.port, "tls": "none", "from": "interlock@example.com",
        "to": ["ada@example.com", "bob@example.com"],
    }  # fmt: skip
    return await set_channel(queue, who, **given | fields)


async def claim(queue: Engine, who: Principal) -> Job:
    (job,) = await queue.leases.claim(who.tenant, ClaimFilter("w"))
    return job


async def fail(queue: Engine, who: Principal, *, retryable: bool = True, **fields: Any) -> Job:
    """A job that used its only attempt, or failed permanently."""
    await enqueue(queue, who, payload={"planted": "hush"}, max_attempts=1, **fields)
    job = await claim(queue, who)
    await queue.leases.fail(who.tenant, FailJob(job.id, job.fence, "w", '{"message":"hush"}', retryable=retryable))
    return job


async def ask(queue: Engine, who: Principal, risk: str | None = None, **fields: Any) -> tuple[Job, str]:
    """A job that waits for an approval, and the ID of the approval."""
    await enqueue(queue, who, **fields)
    job = await claim(queue, who)
    order = RequestApproval(job.id, job.fence, "w", "", "hush?", risk=risk)
    return job, (await queue.approvals.open(who, order)).approval.id


def bodies(there: Receiver) -> list[Any]:
    return [json.loads(seen.body) for seen in there.seen]


async def test_slack_gets_blocks_with_escaped_plain_text_and_a_button(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    await set_channel(queue, who, kind="slack", url=there.url)
    job = await fail(queue, who, tags=["<!channel>", "b&b"], agent={"kind": "bot", "id": "1"})
    assert await queue.sender.deliver_due() == 1
    assert bodies(there) == [{
        "text": "Job moved to the dead letters (t)",
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": "Job moved to the dead letters", "emoji": False}},
            {"type": "section", "fields": [
                {"type": "plain_text", "text": text, "emoji": False}
                for text in ("Type: t", f"Job: {job.id}", "Status: dead_letter", "Agent: bot/1", "Tags: &lt;!channel&gt;, b&amp;b")
            ]},
            {"type": "actions", "elements": [{
                "type": "button",
                "text": {"type": "plain_text", "text": "Open in Interlock", "emoji": False},
                "url": f"{SITE}/jobs/{job.id}",
            }]},
        ],
    }]  # fmt: skip
    assert there.seen[0].headers["content-type"] == "application/json"
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, None)]


async def test_teams_gets_an_adaptive_card(queue: Engine, who: Principal, there: Receiver) -> None:
    await set_channel(queue, who, kind="teams", url=there.url)
    there.answer = responds(202)
    job, approval = await ask(queue, who, "high")
    assert await queue.sender.deliver_due() == 1
    facts = [("Type", "t"), ("Job", job.id), ("Status", "waiting_for_approval"), ("Risk", "high")]
    assert bodies(there) == [{
        "type": "message",
        "attachments": [{
            "contentType": "application/vnd.microsoft.card.adaptive",
            "contentUrl": None,
            "content": {
                "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                "type": "AdaptiveCard",
                "version": "1.4",
                "body": [
                    {"type": "TextBlock", "text": "Approval requested", "weight": "Bolder", "size": "Medium", "wrap": True},
                    *({"type": "RichTextBlock", "inlines": [
                        {"type": "TextRun", "text": f"{name}: ", "weight": "Bolder"},
                        {"type": "TextRun", "text": value},
                    ]} for name, value in facts),
                ],
                "actions": [
                    {"type": "Action.OpenUrl", "title": "Open in Interlock", "url": f"{SITE}/approvals/{approval}"},
                ],
            },
        }],
    }]  # fmt: skip
    assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, None)]


async def test_a_webhook_gets_signed_json(queue: Engine, who: Principal, there: Receiver) -> None:
    secret = secret_of(b"k" * 32)
    await set_channel(queue, who, kind="webhook", url=there.url, secret=secret)
    job, approval = await ask(queue, who, tags=["x"])
    assert await queue.sender.deliver_due() == 1
    (seen,) = there.seen
    message = Webhook(secret).verify(seen.body, seen.headers)
    assert message == {
        "id": seen.headers["webhook-id"],
        "type": "approval.requested",
        "timestamp": AT,
        "data": {
            "title": "Approval requested", "job_id": job.id, "type": "t", "status": "waiting_for_approval", "tags": ["x"],
            "approval_id": approval, "risk": None, "budget": None, "coalesced": 0, "link": f"{SITE}/approvals/{approval}",
        },
    }  # fmt: skip


async def test_an_email_is_plain_text_for_all_recipients(queue: Engine, who: Principal) -> None:
    async with mail_server() as server:
        await set_mail(queue, who, server)
        job = await fail(queue, who, tags=["nightly"])
        assert await queue.sender.deliver_due() == 1
        (message,), (envelope,) = server.messages, server.envelopes
    assert (envelope.mail_from, envelope.rcpt_tos) == ("interlock@example.com", ["ada@example.com", "bob@example.com"])
    (delivery,) = await queue.webhooks.deliveries(who, DeliveryFilter())
    expected = {
        "From": "interlock@example.com",
        "To": "ada@example.com, bob@example.com",
        "Subject": "[Interlock] Job moved to the dead letters: t",
        "Date": "Fri, 15 Jan 2027 08:00:00 +0000",
        "Message-ID": f"<{delivery.id}@example.com>",
        "Auto-Submitted": "auto-generated",
    }
    assert {name: str(message[name]) for name in expected} == expected
    assert message.get_content_type() == "text/plain"
    assert message.get_content().splitlines() == [
        "Job moved to the dead letters", "", "Type: t", f"Job: {job.id}", "Status: dead_letter", "Tags: nightly",
        f"Time: {AT}", "", f"{SITE}/jobs/{job.id}",
    ]  # fmt: skip


@pytest.mark.parametrize("implicit", [False, True], ids=["starttls", "implicit"])
async def test_an_email_is_sent_encrypted_after_a_login(
    store: Store, who: Principal, tmp_path: Path, implicit: bool
) -> None:
    file = certificate(tmp_path, "127.0.0.1")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    trusted = ssl.create_default_context(cafile=str(file))
    outside = OutboundClient(HERE, tls=trusted, deadline_seconds=RETRY_SECONDS)
    engine = Engine(store, Limits(webhooks=HERE), outside=outside)
    mode = "implicit" if implicit else "starttls"
    async with mail_server(tls=tls, implicit=implicit, login=True) as server:
        await set_mail(engine, who, server, tls=mode, username=USERNAME, password=PASSWORD)
        assert await engine.channels.test(who, "ops") == ChannelTest(True, 250, None)
        assert (server.encrypted, server.logins) == ([True], [(USERNAME.encode(), PASSWORD.encode())])
        await set_mail(engine, who, server, tls=mode, username=USERNAME, password="wrong")
        assert await engine.channels.test(who, "ops") == ChannelTest(False, 535, "login_refused")
    await engine.notifier.close()
    await outside.close()


async def test_an_untrusted_mail_server_gets_neither_password_nor_message(
    queue: Engine, who: Principal, tmp_path: Path
) -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate(tmp_path, "127.0.0.1"))
    async with mail_server(tls=tls, login=True) as server:
        await set_mail(queue, who, server, tls="starttls", username=USERNAME, password=PASSWORD)
        assert await queue.channels.test(who, "ops") == ChannelTest(False, None, "tls_failed")
        assert (server.logins, server.messages) == ([], [])
    async with mail_server() as server:
        await set_mail(queue, who, server, tls="starttls", username=USERNAME, password=PASSWORD)
        assert await queue.channels.test(who, "ops") == ChannelTest(False, None, "not_supported_by_server")
        assert server.logins == []


async def test_mail_servers_that_hang_delay_no_other_mail(queue: Engine, who: Principal) -> None:
    connected = 0

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        await reader.read()
        writer.close()
        connected -= 1

    stuck = await asyncio.start_server(never, "127.0.0.1", 0)
    other = who._replace(tenant="other")
    async with mail_server() as server:
        await set_mail(queue, who, server, port=stuck.sockets[0].getsockname()[1])
        await set_mail(queue, other, server)
        waiting = [asyncio.create_task(queue.channels.test(who, "ops")) for _ in range(20)]
        await after(lambda: connected == 20)
        assert await queue.channels.test(other, "ops") == ChannelTest(True, 250, None)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await after(lambda: connected == 0)
    stuck.close()


async def test_channels_of_other_tenants_with_the_same_name_do_not_share_its_pace(
    store: Store, who: Principal, there: Receiver
) -> None:
    outside = OutboundClient(HERE, deadline_seconds=RETRY_SECONDS)
    engine = Engine(store, Limits(webhooks=HERE), outside=outside)
    sender = Sender(store, outside, pace=Pace(host=1))
    async with receiver() as stuck:
        stuck.answer = hang
        await set_channel(engine, who, kind="slack", url=stuck.url)
        await fail(engine, who)
        sender.start()
        await after(lambda: stuck.under_way == 1)
        other = who._replace(tenant="other")
        await set_channel(engine, other, kind="slack", url=there.url)
        await fail(engine, other)
        await after(lambda: len(there.seen) == 1)
        await sender.stop()
    await outside.close()


async def test_a_refused_email_is_retried_with_the_same_message_id(
    queue: Engine, who: Principal, clock: ManualClock
) -> None:
    async with mail_server() as server:
        await set_mail(queue, who, server)
        await fail(queue, who)
        server.reply = "451 later"
        await queue.sender.deliver_due()
        assert await statuses(queue, who) == [(DeliveryStatus.FAILED, 1, "refused_by_receiver")]
        server.reply = "250 OK"
        clock.advance(DELAYS_SECONDS[0] * 1.2)
        await queue.sender.deliver_due()
        assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 2, None)]
        (message,) = server.messages
        (delivery,) = await queue.webhooks.deliveries(who, DeliveryFilter())
        assert message["Message-ID"] == f"<{delivery.id}@example.com>"


async def test_one_refused_recipient_does_not_repeat_the_message_for_the_others(queue: Engine, who: Principal) -> None:
    async with mail_server() as server:
        server.refused = {"bob@example.com"}
        await set_mail(queue, who, server)
        await fail(queue, who)
        await queue.sender.deliver_due()
        assert await statuses(queue, who) == [(DeliveryStatus.DELIVERED, 1, "recipients_refused")]
        assert [envelope.rcpt_tos for envelope in server.envelopes] == [["ada@example.com"]]
        server.refused |= {"ada@example.com"}
        assert await queue.channels.test(who, "ops") == ChannelTest(False, 550, "recipients_refused")


@pytest.mark.parametrize("kind", ["slack", "teams", "webhook", "email"])
async def test_no_message_contains_payload_prompt_or_error(
    queue: Engine, who: Principal, there: Receiver, kind: str
) -> None:
    async with mail_server() as server:
        if kind == "email":
            await set_mail(queue, who, server, events=list(EVENTS))
        else:
            await set_channel(queue, who, kind=kind, url=there.url, events=list(EVENTS))
        await fail(queue, who)
        await fail(queue, who, retryable=False)
        await ask(queue, who)
        await queue.sender.deliver_due()
        sent = [seen.body for seen in there.seen] + [message.as_bytes() for message in server.messages]
    assert len(sent) == 3
    assert not any(b"hush" in content for content in sent)


async def test_an_expired_lease_reports_a_stale_worker(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await set_channel(queue, who, kind="webhook", url=there.url)
    await enqueue(queue, who)
    job = await claim(queue, who)
    await queue.sender.deliver_due()
    assert there.seen == []
    clock.advance(3600)
    await queue.maintenance.sweep()
    await queue.sender.deliver_due()
    (message,) = bodies(there)
    assert (message["type"], message["data"]["job_id"]) == ("worker.stale", job.id)


async def set_budget(queue: Engine, who: Principal, **fields: Any) -> None:
    await queue.budgets.set(who, "a&b", BudgetRequest(**{"amount": {"usd": 10.0}, **fields}))


async def spend(queue: Engine, who: Principal, usd: float) -> None:
    job = await claim(queue, who)
    await queue.leases.complete(who.tenant, CompleteJob(job.id, job.fence, "w", usage=json.dumps({"usd": usd})))


async def announced(queue: Engine, there: Receiver) -> list[Any]:
    """Announce spent budgets, and return the messages that were sent."""
    there.seen.clear()
    await queue.spent_budgets.announce()
    while await queue.sender.deliver_due():
        pass
    return bodies(there)


async def test_a_spent_budget_is_reported_once_until_it_changes(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await set_channel(queue, who, kind="webhook", url=there.url, min_interval_seconds=0)
    await set_budget(queue, who)
    _, waiting, _ = await enqueue(queue, who, 3, budgets=["a&b"], tags=["x"])
    await spend(queue, who, 9)
    assert await announced(queue, there) == []
    await queue.budgets.set(who, "a&b", BudgetRequest(amount={"usd": 9.0}))
    (message,) = await announced(queue, there)
    assert (message["type"], message["timestamp"]) == ("budget.spent", AT)
    assert message["data"] == {
        "title": "Budget spent", "job_id": waiting, "type": "t", "status": "queued", "tags": ["x"], "approval_id": None,
        "risk": None, "budget": "a&b", "coalesced": 0, "link": f"{SITE}/budgets/a%26b",
    }  # fmt: skip
    assert await announced(queue, there) == []
    clock.advance(1)
    await queue.budgets.raise_by(who, "a&b", {"usd": 1.0})
    assert await announced(queue, there) == []
    await spend(queue, who, 1)
    assert [message["type"] for message in await announced(queue, there)] == ["budget.spent"]


async def test_a_spent_budget_is_reported_again_in_the_next_period(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await set_channel(queue, who, kind="webhook", url=there.url, min_interval_seconds=0)
    await set_budget(queue, who, per=Per.HOUR)
    await enqueue(queue, who, 3, budgets=["a&b"])
    await spend(queue, who, 10)
    assert len(await announced(queue, there)) == 1
    clock.advance(3600)
    assert await announced(queue, there) == []
    await spend(queue, who, 10)
    assert len(await announced(queue, there)) == 1
    assert await announced(queue, there) == []


async def test_a_reserved_budget_is_not_spent_and_one_too_small_for_a_job_is(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    await set_channel(queue, who, kind="webhook", url=there.url)
    await queue.flow.set(who, "calls", LimitRequest(rate=Rate(units={"usd": 100.0}, per_seconds=60)))
    await set_budget(queue, who)
    await enqueue(queue, who, 2, budgets=["a&b"], limits=[{"name": "calls", "cost": {"usd": 6}}])
    job = await claim(queue, who)
    assert await queue.leases.claim(who.tenant, ClaimFilter("w")) == []
    assert await announced(queue, there) == []
    await queue.leases.complete(who.tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 5}'))
    (message,) = await announced(queue, there)
    assert message["data"]["budget"] == "a&b"


async def test_filters_of_a_channel_apply_to_the_unfinished_jobs_of_a_spent_budget(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    for name, fields in {"all": {}, "type": {"types": ["t"]}, "tag": {"tags": ["x"]}, "none": {"types": ["u"]}}.items():
        await set_channel(queue, who, name, kind="webhook", url=f"{there.url}/{name}", min_interval_seconds=0, **fields)
    await set_channel(queue, who, "deaf", kind="webhook", url=f"{there.url}/deaf", events=["job.failed"])
    await set_budget(queue, who, on_exceed=OnExceed.WARN)
    await enqueue(queue, who, budgets=["a&b"], tags=["x"])
    await spend(queue, who, 10)
    (message,) = await announced(queue, there)
    assert (there.seen[0].line.split()[1], message["data"]["job_id"], message["data"]["type"]) == (
        "/hook/all",
        None,
        None,
    )
    clock.advance(1)
    await set_budget(queue, who, on_exceed=OnExceed.WARN)
    await enqueue(queue, who, budgets=["a&b"], tags=["y"])
    await claim(queue, who)
    await enqueue(queue, who, budgets=["a&b"], tags=["x"], delay_seconds=60)
    await announced(queue, there)
    assert sorted(seen.line.split()[1] for seen in there.seen) == ["/hook/all", "/hook/type"]


async def test_the_spent_budget_of_a_tree_leads_to_its_root(queue: Engine, who: Principal, there: Receiver) -> None:
    await set_channel(queue, who, kind="teams", url=there.url, types=["t"])
    (root,) = await enqueue(queue, who, budget={"usd": 1})
    job = await claim(queue, who)
    await enqueue(queue, who, parent_id=root, type="child")
    await queue.leases.complete(who.tenant, CompleteJob(job.id, job.fence, "w", usage='{"usd": 2}'))
    assert await announced(queue, there) == []
    assert await queue.leases.claim(who.tenant, ClaimFilter("w")) == []
    (message,) = await announced(queue, there)
    (card,) = [attachment["content"] for attachment in message["attachments"]]
    assert card["actions"][0]["url"] == f"{SITE}/jobs/{root}"
    assert [run["text"] for run in card["body"][1]["inlines"]] == ["Budget: ", f"tree:{root}"]
    assert await announced(queue, there) == []


async def test_a_channel_receives_only_the_types_tags_and_risks_that_it_names(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    quiet: dict[str, Any] = {
        "kind": "webhook",
        "min_interval_seconds": 0,
        "events": ["approval.requested", "job.dead_letter"],
    }
    filters: dict[str, dict[str, Any]] = {
        "type": {"types": ["a"]},
        "tag": {"tags": ["x", "y"]},
        "risk": {"min_risk": "high"},
        "all": {"types": ["a"], "tags": ["x"], "min_risk": "low"},
    }
    for name, fields in filters.items():
        await set_channel(queue, who, name, **quiet, url=f"{there.url}/{name}", **fields)

    async def heard() -> list[str]:
        there.seen.clear()
        while await queue.sender.deliver_due():
            pass
        return sorted(seen.line.split()[1].removeprefix("/hook/") for seen in there.seen)

    await ask(queue, who, type="a")
    assert await heard() == ["type"]
    await ask(queue, who, tags=["y", "z"])
    assert await heard() == ["tag"]
    await ask(queue, who, "high")
    assert await heard() == ["risk"]
    for high in ("Critical", "our own name"):
        await ask(queue, who, high)
        assert await heard() == ["risk"]
    for low in ("low", "MEDIUM", None):
        await ask(queue, who, low)
        assert await heard() == []
    await ask(queue, who, "low", type="a", tags=["x"])
    assert await heard() == ["all", "tag", "type"]
    await fail(queue, who, type="a", tags=["x"])
    assert await heard() == ["all", "risk", "tag", "type"]


async def test_a_burst_is_coalesced_into_one_message(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    await set_channel(queue, who, kind="slack", url=there.url, min_interval_seconds=30)
    await fail(queue, who)
    await queue.sender.deliver_due()
    for _ in range(4):
        await fail(queue, who)
    clock.advance(1)
    last = await fail(queue, who)
    await fail(queue, who, type="another")
    await queue.sender.deliver_due()
    assert [body["text"] for body in bodies(there)] == [
        "Job moved to the dead letters (t)", "Job moved to the dead letters (another)",
    ]  # fmt: skip
    clock.advance(31)
    await queue.sender.deliver_due()
    fields = [field["text"] for field in bodies(there)[-1]["blocks"][1]["fields"]]
    assert fields == ["Type: t", f"Job: {last.id}", "Status: dead_letter", "Similar events: 4 more"]
    assert len(there.seen) == 3


async def test_a_test_message_is_sent_immediately_and_once(queue: Engine, who: Principal, there: Receiver) -> None:
    await set_channel(queue, who, kind="webhook", url=there.url)
    assert await queue.channels.test(who, "ops") == ChannelTest(True, 200, None)
    (message,) = bodies(there)
    assert (message["type"], message["data"]["channel"], message["data"]["link"]) == ("channel.test", "ops", SITE)
    there.answer = responds(500)
    assert await queue.channels.test(who, "ops") == ChannelTest(False, 500, "refused_by_receiver")
    assert len(there.seen) == 2
    assert await statuses(queue, who) == []


async def test_a_receiver_that_is_gone_disables_its_channel_until_it_is_set_again(
    queue: Engine, who: Principal, there: Receiver, clock: ManualClock
) -> None:
    given: dict[str, Any] = {"kind": "slack", "url": there.url, "min_interval_seconds": 0}
    assert (await set_channel(queue, who, **given)).disabled_at is None
    there.answer = responds(410)
    await fail(queue, who)
    await queue.sender.deliver_due()
    disabled = await queue.channels.get(who, "ops")
    assert disabled.disabled_at == clock.now
    clock.advance(2 * 86_400)
    assert await queue.webhooks.sweep_subscriptions() == 1
    assert (await queue.channels.get(who, "ops")).disabled_at is not None
    there.answer = responds(200)
    assert (await set_channel(queue, who, **given)).disabled_at is None
    await fail(queue, who)
    await queue.sender.deliver_due()
    assert len(there.seen) == 2


async def test_pending_messages_follow_a_change_and_end_with_their_channel(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    await set_channel(queue, who, kind="slack", url="https://127.0.0.1:1/")
    await fail(queue, who)
    await set_channel(queue, who, kind="webhook", url=there.url)
    await queue.sender.deliver_due()
    assert [body["type"] for body in bodies(there)] == ["job.dead_letter"]
    await fail(queue, who, type="later")
    await queue.channels.delete(who, "ops")
    await queue.sender.deliver_due()
    assert len(there.seen) == 1
    for call in (queue.channels.get(who, "ops"), queue.channels.delete(who, "ops"), queue.channels.test(who, "ops")):
        with pytest.raises(NotFound, match="no channel ops"):
            await call


async def test_the_subscription_of_a_channel_is_not_one_of_the_users(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    await set_channel(queue, who, kind="slack", url=there.url)
    await fail(queue, who)
    await queue.sender.deliver_due()
    assert await queue.webhooks.subscriptions(who) == []
    (delivery,) = await queue.webhooks.deliveries(who, DeliveryFilter())
    id = delivery.subscription_id
    assert id is not None
    for call in (
        queue.webhooks.subscription(who, id),
        queue.webhooks.unsubscribe(who, id),
        queue.webhooks.renew(who, id),
        queue.webhooks.rotate(who, id),
    ):
        with pytest.raises(NotFound):
            await call


async def test_no_secret_is_returned(queue: Engine, who: Principal, there: Receiver) -> None:
    secret = secret_of(b"s" * 32)
    made = await set_channel(queue, who, kind="webhook", url=f"{there.url}/token-hush", secret=secret)
    async with mail_server() as server:
        mail = {"username": USERNAME, "password": PASSWORD, "tls": "implicit"}
        mailed = await set_mail(queue, who, server, **mail)
    shown = repr([made, mailed, channel_to_dict(made), channel_to_dict(mailed)])
    log = repr(await queue.audit.log(who.tenant, limit=10))
    for text in (shown, log):
        assert not any(hidden in text for hidden in ("token-hush", secret, PASSWORD))
    assert (channel_to_dict(made)["host"], channel_to_dict(mailed)["username"]) == ("127.0.0.1", USERNAME)


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"kind": "pager"}, "/kind"),
        ({"url": None}, "/url"),
        ({"url": "https://10.0.0.1/"}, "/url"),
        ({"url": "http://a.example/"}, "/url"),
        ({"secret": "whsec_c2VjcmV0"}, "/secret"),
        ({"kind": "webhook", "secret": "plain"}, "/secret"),
        ({"kind": "webhook", "secret": "whsec_!"}, "/secret"),
        ({"host": "mail.example.com"}, "/host"),
        ({"to": ["ada@example.com"]}, "/to"),
        ({"events": []}, "/events"),
        ({"events": ["job.queued"]}, "/events/0"),
        ({"events": ["job.failed", "job.failed"]}, "/events"),
        ({"types": ["*", "t"]}, "/types"),
        ({"tags": [""]}, "/tags"),
        ({"min_risk": "huge"}, "/min_risk"),
        ({"min_interval_seconds": -1}, "/min_interval_seconds"),
        ({"min_interval_seconds": 86_401}, "/min_interval_seconds"),
        ({"unknown": 1}, ""),
    ],
)
async def test_a_channel_is_validated(
    queue: Engine, who: Principal, there: Receiver, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await set_channel(queue, who, **{"kind": "slack", "url": there.url} | fields)
    assert caught.value.pointer == pointer
    assert await queue.channels.page(who) == []


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"host": None}, "/host"),
        ({"host": "10.0.0.1", "port": 25}, "/host"),
        ({"host": "mail", "port": 25}, "/host"),
        ({"host": "mail.example.com", "port": 22}, "/port"),
        ({"host": "bad host", "port": 25}, "/host"),
        ({"tls": "ssl"}, "/tls"),
        ({"username": "u"}, "/username"),
        ({"username": "u", "password": "p"}, "/tls"),
        ({"username": "u\r\n", "password": "p", "tls": "implicit"}, "/username"),
        ({"from": None}, "/from"),
        ({"from": "x@example.com\r\nBcc: y@example.com"}, "/from"),
        ({"to": []}, "/to"),
        ({"to": ["ada@example.com", "nobody"]}, "/to/1"),
        ({"to": [f"a{i}@example.com" for i in range(51)]}, "/to"),
        ({"url": "https://example.com"}, "/url"),
    ],
)
async def test_an_email_channel_is_validated(
    queue: Engine, who: Principal, fields: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        await set_mail(queue, who, MailServer(), **{"port": 25} | fields)
    assert caught.value.pointer == pointer


async def test_only_administrators_may_manage_channels(queue: Engine, who: Principal, there: Receiver) -> None:
    await set_channel(queue, who, kind="slack", url=there.url)
    weak = who._replace(roles=frozenset({"read", "produce", "work", "approve", "operate"}))
    for call in (
        set_channel(queue, weak, kind="slack", url=there.url),
        queue.channels.get(weak, "ops"),
        queue.channels.page(weak),
        queue.channels.delete(weak, "ops"),
        queue.channels.test(weak, "ops"),
    ):
        with pytest.raises(Forbidden):
            await call


async def test_channels_are_listed_by_name_and_belong_to_one_tenant(
    queue: Engine, who: Principal, there: Receiver
) -> None:
    for name in ("c", "a", "b"):
        await set_channel(queue, who, name, kind="slack", url=there.url)
    assert [one.name for one in await queue.channels.page(who, limit=2)] == ["a", "b"]
    assert [one.name for one in await queue.channels.page(who, after="b")] == ["c"]
    other = who._replace(tenant="other")
    assert await queue.channels.page(other) == []
    with pytest.raises(NotFound):
        await queue.channels.delete(other, "a")


async def test_a_tenant_has_a_limited_number_of_channels(
    queue: Engine, who: Principal, there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("interlock.domain.channel.MAX_CHANNELS", 1)
    await set_channel(queue, who, kind="slack", url=there.url)
    await set_channel(queue, who, kind="teams", url=there.url)
    with pytest.raises(Invalid, match="at most 1 channels"):
        await set_channel(queue, who, "second", kind="slack", url=there.url)
