"""Streams of a job over HTTP: appended by the lease holder, read by page or followed from any offset."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.rig import NEVER, Api, pointer, problem
from tests.api.test_streams import Stream
from tests.support.eventually import eventually


async def append(api: Api, job: dict[str, Any], offset: int, *chunks: dict[str, str]) -> Any:
    body = {"fence": job["lease"]["fence"], "offset": offset, "chunks": chunks}
    return await api.post(f"/v1/jobs/{job['id']}/streams/tokens", body)


async def test_a_stream_is_appended_listed_and_read_by_page(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/streams"
    assert api.ok(await api.get(path)) == {"items": []}
    for _ in range(2):  # the second repeats the first
        assert api.ok(await append(api, job, 0, {"text": "ß"}, {"base64": "/wA="})) == {"next": 2}
    (info,) = api.ok(await api.get(path))["items"]
    assert (info["name"], info["chunks"], info["bytes"]) == ("tokens", 2, 4)
    first = api.ok(await api.get(f"{path}/tokens?limit=1"))
    (chunk,) = first["items"]
    assert (chunk["offset"], chunk["attempt"], chunk["fence"], chunk["text"]) == (0, 1, job["lease"]["fence"], "ß")
    assert (first["next"], first["ended"]) == (0, False)
    api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"]}))
    rest = api.ok(await api.get(f"{path}/tokens?after=0"))
    assert [one["base64"] for one in rest["items"]] == ["/wA="]
    assert (rest["next"], rest["ended"]) == (1, True)


async def test_a_reader_follows_a_stream_to_the_end_of_the_job_and_resumes_at_an_offset(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/streams/tokens/follow"
    async with Stream(api, path) as all_chunks, Stream(api, path, "0") as resumed:
        api.ok(await append(api, job, 0, {"text": "a"}))
        await eventually(lambda: _has(all_chunks, 1))
        api.ok(await append(api, job, 1, {"text": "b"}))
        await eventually(lambda: _has(all_chunks, 2))
        api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"]}))
        await eventually(lambda: _has(all_chunks, 3))
        await eventually(lambda: _has(resumed, 2))
    assert [event.get("id") for event in all_chunks.events] == ["0", "1", None]
    assert [json.loads(event["data"])["text"] for event in all_chunks.events[:2]] == ["a", "b"]
    assert [(event["event"], event.get("id")) for event in resumed.events] == [("chunk", "1"), ("end", None)]


@pytest.mark.parametrize(
    ("chunk", "where"),
    [({}, "/chunks/0"), ({"text": "a", "base64": ""}, "/chunks/0"), ({"text": ""}, "/chunks/0"), ({"base64": "?"}, "/chunks/0/base64")],
)  # fmt: skip
async def test_an_invalid_chunk_is_rejected_by_its_place(api: Api, chunk: dict[str, str], where: str) -> None:
    assert pointer(await append(api, await api.running(), 0, chunk)) == where


async def test_a_gap_a_large_chunk_and_an_unknown_job_are_rejected(api: Api) -> None:
    job = await api.running()
    assert problem(await append(api, job, 1, {"text": "a"}), 409, "stream_conflict")["next"] == 0
    problem(await append(api, job, 0, {"text": "x" * (64 * 1024 + 1)}), 413, "too_large")
    problem(await append(api, job | {"id": NEVER}, 0, {"text": "a"}), 404, "not_found")
    problem(await api.get(f"/v1/jobs/{NEVER}/streams/tokens/follow"), 404, "not_found")
    follow = f"/v1/jobs/{job['id']}/streams/tokens/follow"
    assert pointer(await api.get(follow, headers={"last-event-id": "x"})) == "/last-event-id"


async def _has(stream: Stream, count: int) -> bool:
    return len(stream.events) >= count
