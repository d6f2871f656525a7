"""codeQ's words, and the formats of its webhooks."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Status
from interlock.domain.webhook import DeliveryStatus, Outcome, WebhookResponse
from interlock.domain.webhook_format import STANDARD, address, format_of
from interlock.faces.codeq import model as codeq

URL = "https://hooks.example.org/in?a=b+c"


@pytest.mark.parametrize("dialect", [STANDARD, codeq.NAME])
def test_a_stored_url_contains_its_webhook_format(dialect: str) -> None:
    assert format_of(address(dialect, URL)) == (dialect, URL)


def test_the_native_format_adds_no_marker() -> None:
    assert address(STANDARD, URL) == URL


@pytest.mark.parametrize("url", ["https://a+b.example.org/", "codeq+ftp://x", "Git+https://x", "", "+"])
def test_an_unknown_format_is_part_of_the_url(url: str) -> None:
    assert format_of(url) == (STANDARD, url)


@pytest.mark.parametrize("status", Status)
def test_every_status_has_a_name(status: Status) -> None:
    assert status in codeq.STATUSES[codeq.status_of(status)]


def test_a_signature_is_over_the_time_and_the_body() -> None:
    assert codeq.headers("key", 1_800_000_000, b'{"a":1}') == {
        "content-type": "application/json",
        "x-codeq-timestamp": "1800000000",
        "x-codeq-signature": "7330c9cf7d886970cbebbbb5494c04d2aeff06a990adb7d7a75abfeb0159d291",
    }


@pytest.mark.parametrize(("tried", "delay"), [(0, 2.0), (1, 4.0), (2, 8.0), (3, 16.0)])
def test_the_delay_grows_with_each_failed_delivery_of_a_result(tried: int, delay: float) -> None:
    for reply in (
        WebhookResponse(500),
        WebhookResponse(302),
        WebhookResponse(410),
        WebhookResponse(error="timeout"),
        WebhookResponse(429, retry_after_seconds=900),
    ):
        assert codeq.result_outcome(tried, reply) == Outcome(DeliveryStatus.FAILED, delay)


def test_a_result_is_abandoned_after_the_fifth_attempt() -> None:
    assert codeq.result_outcome(4, WebhookResponse(500)) == Outcome(DeliveryStatus.DEAD)
    assert codeq.result_outcome(4, WebhookResponse(204)) == Outcome(DeliveryStatus.DELIVERED)
