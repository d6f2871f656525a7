"""Webhooks as values: bodies, signatures, and the outcome of a failed attempt."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks.webhooks import Webhook

from interlock.domain import webhook
from interlock.domain.lifecycle import Status
from interlock.domain.webhook import DELAYS_SECONDS, EVENTS, DeliveryStatus, Dispatch, WebhookResponse
from interlock.errors import Invalid

SECRET = webhook.secret_of(bytes(range(32)))
NOW = 1_800_000_000


def dispatch(**fields: Any) -> Dispatch:
    facts: dict[str, Any] = {
        "id": "0193a1b2-c3d4-7e5f-8a9b-000000000001", "grab": 1, "channel": "subscription:x", "attempts": 0,
        "event": "job.succeeded", "at": 0, "job_id": "0193a1b2-c3d4-7e5f-8a9b-000000000002", "type": "work",
        "status": "succeeded", "previous": "running", "attempt": 2, "version": 5, "agent_kind": None, "agent_id": None,
        "tags": (), "approval_id": None, "budget": None, "folded": 0, "subscription_id": None, "url": "https://a.example/", "secrets": [],
    }  # fmt: skip
    return Dispatch(**facts | fields)


def test_there_is_an_event_for_every_status_and_three_more() -> None:
    assert {f"job.{status}" for status in Status} < set(EVENTS)
    assert set(EVENTS) - {f"job.{status}" for status in Status} == {
        "queue.ready",
        "approval.requested",
        "approval.decided",
    }


def test_the_bytes_of_a_body_are_fixed() -> None:
    """A receiver may get a message again after an upgrade of ours; change this text and its body is no longer the same."""
    reported = dispatch(agent_kind="planner", agent_id="7", tags=("a", "ü"), approval_id="g1", folded=3)
    assert webhook.body(reported, "2027-01-15T08:00:00.000000Z") == (
        b'{"id":"0193a1b2-c3d4-7e5f-8a9b-000000000001","type":"job.succeeded","timestamp":"2027-01-15T08:00:00.000000Z",'
        b'"data":{"job_id":"0193a1b2-c3d4-7e5f-8a9b-000000000002","type":"work","status":"succeeded",'
        b'"previous_status":"running","attempt":2,"version":5,"agent":{"kind":"planner","id":"7"},"tags":["a","\\u00fc"],'
        b'"approval_id":"g1","folded":3}}'
    )


def test_a_body_does_not_depend_on_sender_and_attempt() -> None:
    first = webhook.body(dispatch(), "t")
    assert first == webhook.body(dispatch(grab=9, attempts=4, url="https://b.example/", secrets=[SECRET]), "t")
    assert json.loads(first)["data"].keys() == {
        "job_id", "type", "status", "previous_status", "attempt", "version", "agent", "tags",
    }  # fmt: skip


@given(st.binary(max_size=300), st.integers(0, 2**33))
def test_the_signature_follows_the_standard(content: bytes, seconds: int) -> None:
    text = base64.b64encode(content).decode()
    theirs = Webhook(SECRET).sign("msg", datetime.fromtimestamp(seconds, tz=UTC), text)
    assert webhook.sign(SECRET, "msg", seconds, text.encode()) == theirs


def test_while_a_secret_rotates_either_one_verifies() -> None:
    other = webhook.secret_of(b"o" * 32)
    headers = webhook.headers([SECRET, other], "msg", NOW, b"{}")
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, other):
        assert webhook.verify(secret, headers, b"{}", now_seconds=NOW)
    assert not webhook.verify(webhook.secret_of(b"x" * 32), headers, b"{}", now_seconds=NOW)


@pytest.mark.parametrize("late", [-301, 301])
def test_a_message_more_than_five_minutes_off_is_rejected(late: int) -> None:
    headers = webhook.headers([SECRET], "msg", NOW, b"{}")
    assert webhook.verify(SECRET, headers, b"{}", now_seconds=NOW + 300)
    assert not webhook.verify(SECRET, headers, b"{}", now_seconds=NOW + late)


@pytest.mark.parametrize(
    "spoiled",
    [
        {"webhook-id": "other"},
        {"webhook-timestamp": str(NOW + 1)},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "²"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,AAAA"},
        {"webhook-signature": "v2" + webhook.sign(SECRET, "msg", NOW, b"{}")[2:]},
        {"webhook-signature": "v1,é"},
    ],
)
def test_a_changed_message_is_rejected(spoiled: dict[str, str]) -> None:
    headers = webhook.headers([SECRET], "msg", NOW, b"{}")
    assert webhook.verify(SECRET, headers, b"{}", now_seconds=NOW)
    assert not webhook.verify(SECRET, headers | spoiled, b"{}", now_seconds=NOW)
    assert not webhook.verify(SECRET, headers, b"{ }", now_seconds=NOW)


def test_header_names_are_case_insensitive() -> None:
    headers = {name.title(): value for name, value in webhook.headers([SECRET], "msg", NOW, b"{}").items()}
    assert webhook.verify(SECRET, headers, b"{}", now_seconds=NOW)


@pytest.mark.parametrize("code", [200, 201, 204, 299])
def test_any_2xx_delivers(code: int) -> None:
    assert webhook.outcome(3, WebhookResponse(code), 0.5) == (DeliveryStatus.DELIVERED, None, False)
    assert webhook.fault_of(WebhookResponse(code)) is None


@pytest.mark.parametrize(
    "reply",
    [
        WebhookResponse(100),
        WebhookResponse(301),
        WebhookResponse(404),
        WebhookResponse(500),
        WebhookResponse(error="timeout"),
    ],
)
def test_any_other_status_is_retried_until_the_delays_end(reply: WebhookResponse) -> None:
    for attempts, delay in enumerate(DELAYS_SECONDS):
        low, high = (webhook.outcome(attempts, reply, chance) for chance in (0.0, 1.0))
        assert low.status is high.status is DeliveryStatus.FAILED
        assert low.delay_seconds == pytest.approx(delay * 0.8)
        assert high.delay_seconds == pytest.approx(delay * 1.2)
    assert webhook.outcome(len(DELAYS_SECONDS), reply, 0.5) == (DeliveryStatus.DEAD, None, False)


def test_a_receiver_that_is_down_for_an_hour_misses_nothing() -> None:
    assert sum(DELAYS_SECONDS) * (1 - webhook.JITTER) > 86_400


def test_status_410_ends_deliveries_immediately() -> None:
    assert webhook.outcome(0, WebhookResponse(410), 0.5) == (DeliveryStatus.DEAD, None, True)
    assert webhook.fault_of(WebhookResponse(410)) == "gone"


def test_a_receiver_may_ask_for_more_time_within_limits() -> None:
    assert webhook.outcome(0, WebhookResponse(429, retry_after_seconds=90.0), 0.5).delay_seconds == 90.0
    assert webhook.outcome(0, WebhookResponse(503, retry_after_seconds=1e9), 0.5).delay_seconds == 3600.0
    assert webhook.outcome(4, WebhookResponse(503, retry_after_seconds=1.0), 0.5).delay_seconds == DELAYS_SECONDS[4]


def test_delivery_errors_are_fixed_phrases() -> None:
    reported = [
        webhook.fault_of(reply)
        for reply in (WebhookResponse(302), WebhookResponse(500), WebhookResponse(error="timeout"))
    ]
    assert reported == ["redirect_refused", "refused_by_receiver", "timeout"]


@pytest.mark.parametrize("events", [[], ["job.succeeded", "job.succeeded"], ["job.*"], ["job.done"], [""]])
def test_only_known_events_can_be_subscribed_to_each_once(events: list[str]) -> None:
    with pytest.raises(Invalid):
        webhook.check_events(events)
