"""One call over HTTP: repeated when that is safe, waiting as the server asks, and only to one host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from interlock.client import transport
from interlock.client.http import HttpClient
from interlock.client.port import Client
from interlock.domain.artifact import File, Holder
from interlock.domain.decide import CompleteJob
from interlock.domain.job import Rejected
from interlock.domain.policy import ClaimFilter
from interlock.errors import (
    Error,
    Forbidden,
    Indeterminate,
    Invalid,
    StorageBroken,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from interlock.wire import JobRequest
from tests.contract_clients.remote_cli import NEVER
from tests.contract_clients.scripted import LOST, answer, hanging_up, scripted
from tests.support.eventually import RETRY_SECONDS

JOB = json.dumps({"id": NEVER, "seq": 1})
CREATED = answer(201, JOB)
AGAIN = answer(200, JOB, idempotent_replay="true")
RECEIPT = json.dumps(
    {"id": NEVER, "fence": 1, "status": "retry", "attempt": 2, "version": 3, "run_at": None, "finished_at": None}
)


def problem(status: int, code: str, **more: object) -> str:
    return json.dumps({"type": "/docs", "title": "", "status": status, "code": code, "detail": f"said {code}", **more})


async def test_a_request_whose_response_was_lost_is_repeated_under_the_same_key() -> None:
    async with scripted([LOST, answer(503, problem(503, "indeterminate")), LOST, AGAIN]) as server:
        client = HttpClient(server.url)
        (created,) = await client.jobs.enqueue([JobRequest(type="work")])
        await client.close()
    assert (created.id, created.replayed) == (NEVER, False)  # it was this very call that had made it
    keys = {json.loads(body)["idempotency_key"] for body in server.bodies}
    assert len(server.bodies) == 4
    assert len(keys) == 1


async def test_a_key_of_the_caller_is_kept_and_a_replay_is_reported() -> None:
    async with scripted([AGAIN]) as server:
        client = HttpClient(server.url)
        (created,) = await client.jobs.enqueue([JobRequest(type="work", idempotency_key="mine")])
        await client.close()
    assert created.replayed
    assert json.loads(server.bodies[0])["idempotency_key"] == "mine"


async def test_a_claim_without_an_id_gets_one_that_stays_over_all_attempts() -> None:
    async with scripted([LOST, LOST, answer(200, '{"jobs": []}')]) as server:
        client = HttpClient(server.url)
        assert await client.work.claim(ClaimFilter("w1", lease_seconds=60.0)) == []
        await client.close()
    assert len({json.loads(body)["claim_id"] for body in server.bodies}) == 1


async def test_a_revoke_with_an_unknown_outcome_is_not_repeated() -> None:
    async with scripted([LOST, answer(200, RECEIPT)]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Indeterminate, match="check before you repeat it"):
            await client.jobs.revoke(NEVER)
        await client.close()
    assert len(server.heads) == 1


@pytest.mark.parametrize("status", [502, 504])
async def test_a_revoke_that_a_gateway_may_have_delivered_is_not_repeated(status: int) -> None:
    async with scripted([answer(status, "bad gateway"), answer(200, RECEIPT)]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Indeterminate, match="check before you repeat it"):
            await client.jobs.revoke(NEVER)
        await client.close()
    assert len(server.heads) == 1


async def test_a_revoke_that_was_certainly_not_applied_is_repeated() -> None:
    busy = answer(503, problem(503, "overloaded"), retry_after="0")
    async with scripted([busy, answer(200, RECEIPT)]) as server:
        client = HttpClient(server.url)
        assert (await client.jobs.revoke(NEVER)).version == 3
        await client.close()


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_respected(status: int) -> None:
    busy = answer(status, problem(status, "rate_limited"), retry_after="1")
    async with scripted([busy, CREATED]) as server:
        client = HttpClient(server.url)
        began = time.monotonic()
        await client.jobs.enqueue([JobRequest(type="work")])
        assert time.monotonic() - began >= 1
        await client.close()


async def test_the_retry_budget_ends_and_the_error_states_whether_the_call_may_have_been_applied() -> None:
    client = HttpClient("http://127.0.0.1:1", retry_seconds=0.3)
    with pytest.raises(Unavailable) as nothing:
        await client.jobs.get(NEVER)
    assert not isinstance(nothing.value, Indeterminate)
    await client.close()
    async with scripted([LOST, answer(503, problem(503, "stopping"), retry_after="500")]) as server:
        client = HttpClient(server.url, retry_seconds=400)
        with pytest.raises(Indeterminate):
            await client.jobs.enqueue([JobRequest(type="work")])
        await client.close()


async def test_a_call_that_was_never_sent_is_reported_as_not_applied() -> None:
    with contextlib.ExitStack() as sockets:
        full = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        sockets.enter_context(
            socket.create_connection(full.getsockname())
        )  # no process accepts it, so the backlog is full
        client = HttpClient(f"http://127.0.0.1:{full.getsockname()[1]}", retry_seconds=0.3)
        with pytest.raises(Unavailable) as nothing:
            await client.jobs.enqueue([JobRequest(type="work")])
        assert not isinstance(nothing.value, Indeterminate)
        await client.close()


async def test_a_retry_after_beyond_the_budget_is_not_waited_for() -> None:
    async with scripted([answer(503, problem(503, "stopping"), retry_after="500")]) as server:
        client = HttpClient(server.url, retry_seconds=400)
        with pytest.raises(Unavailable, match="said stopping"):
            await asyncio.wait_for(client.jobs.get(NEVER), RETRY_SECONDS)
        await client.close()


async def test_broken_storage_behind_a_server_does_not_break_its_clients() -> None:
    async with scripted([answer(503, problem(503, "storage_broken"), retry_after="500")]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Unavailable) as caught:
            await client.jobs.get(NEVER)
        assert not isinstance(caught.value, StorageBroken)
        await client.close()


async def test_a_server_that_closes_on_a_large_body_is_asked_for_the_reason_with_headers_only() -> None:
    async with hanging_up(answer(413, problem(413, "too_large", what="the artifact", size=9, limit=8))) as server:
        client = HttpClient(server.url, retry_seconds=RETRY_SECONDS)
        with pytest.raises(TooLarge) as caught:
            await client.work.attach(Holder(NEVER, 1, "w1"), File("big", bytes(8 * 1024 * 1024)))
        await client.close()
    assert caught.value.limit == 8
    assert [("expect: 100-continue" in head) for head in server.heads] == [False, True]


async def test_a_large_body_that_was_cut_off_but_is_acceptable_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "ASKING_SECONDS", 0.1)
    async with hanging_up(b"HTTP/1.1 100 Continue\r\n\r\n", then=answer(200, json.dumps({"id": NEVER}))) as server:
        client = HttpClient(server.url, retry_seconds=RETRY_SECONDS)
        assert await client.work.attach(Holder(NEVER, 1, "w1"), File("big", bytes(8 * 1024 * 1024))) == NEVER
        await client.close()
    assert [("expect: 100-continue" in head) for head in server.heads] == [False, True, False]


async def test_no_redirect_is_followed_and_the_token_stays_with_its_host() -> None:
    async with scripted([CREATED]) as other, scripted([answer(307, location=other.url)]) as server:
        client = HttpClient(server.url, token="secret")
        with pytest.raises(Error, match="not followed"):
            await client.jobs.enqueue([JobRequest(type="work")])
        await client.close()
    assert "authorization: bearer secret" in server.heads[0]
    assert other.heads == []


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [(401, "unauthenticated", Unauthenticated), (403, "forbidden", Forbidden), (500, "internal", Error),
     (404, "no_such_route", Error), (418, "brewing", Error)],
)  # fmt: skip
async def test_a_rejection_raises_the_class_of_its_code_immediately(status: int, code: str, kind: type[Error]) -> None:
    async with scripted([answer(status, problem(status, code))]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Error, match=f"said {code}") as caught:
            await client.jobs.get(NEVER)
        assert type(caught.value) is kind
        assert len(server.heads) == 1
        await client.close()


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.jobs.get(NEVER), lambda client: client.jobs.budget(NEVER),
        lambda client: client.limits.get("x"), lambda client: client.budgets.get("x"),
        lambda client: client.channels.get("x"), lambda client: client.schedules.get("x"),
    ],
)  # fmt: skip
async def test_a_response_that_is_not_ours_is_an_interlock_error(call: Callable[[Client], Awaitable[Any]]) -> None:
    async with scripted([answer(200, "<html>")]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Error, match="cannot decode the response"):
            await call(client)
        await client.close()
    async with scripted([answer(403, "<html>")]) as server:
        client = HttpClient(server.url)
        with pytest.raises(Error, match="status 403"):
            await client.jobs.get(NEVER)
        await client.close()


async def test_an_oversized_response_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LARGEST_ANSWER", 1000)
    async with scripted([answer(200, " " * 1001)]) as server:
        client = HttpClient(server.url)
        with pytest.raises(TooLarge):
            await client.jobs.get(NEVER)
        await client.close()


@pytest.mark.parametrize(
    "url",
    ["ftp://host", "http://", "https://user:pass@host", "https://host/?a=b", "https://host:port", "host", "http:///x"],
)
def test_an_invalid_server_url_is_rejected_before_anything_is_sent(url: str) -> None:
    with pytest.raises(Invalid):
        HttpClient(url)


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "ümlaut"])
def test_an_invalid_token_is_rejected(token: str) -> None:
    with pytest.raises(Invalid):
        HttpClient("http://host", token=token)


async def test_a_server_may_be_served_under_a_path() -> None:
    async with scripted([CREATED]) as server:
        client = HttpClient(f"{server.url}/queue/")
        await client.jobs.enqueue([JobRequest(type="work")])
        await client.close()
    assert server.heads[0].startswith("post /queue/v1/jobs http/1.1")


async def test_a_job_cannot_join_a_transaction_through_a_server() -> None:
    client = HttpClient("http://127.0.0.1:1")
    with pytest.raises(Invalid, match="transaction"):
        await client.jobs.enqueue([JobRequest(type="work")], within=object())
    await client.close()


async def test_batches_that_exceed_one_request_are_sent_in_several() -> None:
    async with scripted([answer(200, json.dumps({"items": [json.loads(RECEIPT)] * 3}))]) as server:
        client = HttpClient(server.url)
        result = json.dumps("x" * 300_000)
        answers = await client.work.finishes([CompleteJob(NEVER, 1, "w1", result) for _ in range(9)])
        assert not any(isinstance(one, Rejected) for one in answers)
        await client.close()
    assert len(server.bodies) == 3
    assert all(len(body) < 1024 * 1024 for body in server.bodies)
    assert all(len(msgspec.json.decode(body)["items"]) == 3 for body in server.bodies)
