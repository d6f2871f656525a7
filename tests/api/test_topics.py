"""Topics over HTTP, and what a job shows while it waits for a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import Api, pointer, problem


async def waits(api: Api, message: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A job that waits for a message."""
    job = await api.running()
    api.ok(await api.post(f"/v1/jobs/{job['id']}/release", {"fence": job["lease"]["fence"], "message": message} | more))
    return await api.job(job["id"])


async def test_a_message_to_a_topic_reaches_the_jobs_that_wait_for_it(api: Api) -> None:
    job = await waits(api, {"topic": "news"})
    assert (job["status"], job["location"], job["awaiting"]) == (
        "queued", "blocked", {"message": {"topic": "news", "after": 0}},
    )  # fmt: skip
    for status in (201, 200):
        done = api.ok(await api.post("/v1/topics/news/messages", {"payload": {"n": 1}, "id": "m1"}), status)
        assert done == {"id": "m1", "delivered": 1}
    problem(await api.post("/v1/topics/news/messages", {"payload": 2, "id": "m1"}), 409, "topic_conflict")
    (message,) = api.ok(await api.get(f"/v1/jobs/{job['id']}/messages?topic=news"))["items"]
    assert (message["seq"], message["id"], message["name"], message["topic"], message["payload"]) == (
        1, "m1", None, "news", {"n": 1},
    )  # fmt: skip
    woken = await api.job(job["id"])
    assert (woken["location"], woken["awaiting"]) == ("ready", None)
    (leased,) = await api.claim()
    assert (leased["id"], leased["awaiting"]) == (job["id"], None)
    beat = api.ok(await api.post(f"/v1/jobs/{job['id']}/heartbeat", {"fence": leased["lease"]["fence"]}))
    assert beat["messages"] == 1


async def test_a_message_is_retained_for_jobs_that_begin_to_wait(api: Api) -> None:
    api.ok(await api.post("/v1/topics/news/messages", {"payload": 1, "retain_seconds": 60}), 201)
    assert (await waits(api, {"topic": "news"}))["location"] == "ready"


async def test_a_wait_with_a_time_limit_is_over_with_its_time(api: Api) -> None:
    job = await waits(api, {"name": "go", "after": 3}, delay_seconds=60)
    assert job["awaiting"] == {"message": {"name": "go", "after": 3}}
    why = api.ok(await api.get(f"/v1/jobs/{job['id']}/why"))
    assert (why["clause"], why["details"]["name"], why["details"]["after"]) == ("waiting_for_message", "go", 3)
    (listed,) = api.ok(await api.get("/v1/jobs"))["items"]
    assert listed["location"] == "blocked"
    api.clock.advance(60)
    over = await api.job(job["id"])
    assert (over["location"], over["awaiting"]) == ("ready", None)


async def test_a_job_that_waits_for_children_says_so(api: Api) -> None:
    parent = await api.running()
    child = await api.enqueue(parent_id=parent["id"], delay_seconds=60)
    body = {"fence": parent["lease"]["fence"], "children": [child["id"]]}
    api.ok(await api.post(f"/v1/jobs/{parent['id']}/release", body))
    job = await api.job(parent["id"])
    assert (job["location"], job["awaiting"]) == ("blocked", {"children": [child["id"]]})
    assert (await api.job(child["id"]))["awaiting"] is None


@pytest.mark.parametrize("message", [{}, {"name": "a", "topic": "b"}])
async def test_a_wait_names_either_a_message_or_a_topic(api: Api, message: dict[str, Any]) -> None:
    job = await api.running()
    body = {"fence": job["lease"]["fence"], "message": message}
    assert pointer(await api.post(f"/v1/jobs/{job['id']}/release", body)) == "/message"


async def test_wrong_messages_to_topics_are_rejected(api: Api) -> None:
    path = "/v1/topics/news/messages"
    assert pointer(await api.post(path, {"retain_seconds": 7 * 86_400 + 1})) == "/retain_seconds"
    assert pointer(await api.post(path, {"id": ""})) == "/id"
    problem(await api.post(path, {"payload": "x" * 300_000}), 413, "too_large")
