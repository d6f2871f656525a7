"""Streams: events as they are emitted, resumed where they broke off, with keep-alive comments in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from interlock.api.options import Options
from interlock.storage.contract import Store
from tests.api.rig import Api, pointer, problem, serving
from tests.support.eventually import eventually
from tests.support.stores import ManualClock


@pytest.fixture
async def api(store: Store, clock: ManualClock, options: Options) -> AsyncIterator[Api]:
    """A service that sends keep-alive comments often."""
    quick = Options(tenant=options.tenant, keep_alive_seconds=0.05)
    async with serving(store, clock, quick) as served:
        yield served


class Stream:
    """The events that a follower of a stream has read."""

    def __init__(self, api: Api, path: str, last_event_id: str | None = None) -> None:
        self._api, self._path = api, path
        self._headers = {} if last_event_id is None else {"last-event-id": last_event_id}
        self.events: list[dict[str, str]] = []
        self.comments = 0
        self.over = False

    async def __aenter__(self) -> Stream:
        self._task = asyncio.create_task(self._read())
        await eventually(lambda: _is(self.over or self._started))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    _started = False

    async def _read(self) -> None:
        headers = self._api.headers() | self._headers
        async with self._api.http.stream("GET", self._path, headers=headers) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream"
            event: dict[str, str] = {}
            async for line in response.aiter_lines():
                self._started = True
                name, _, value = line.partition(": ")
                if line.startswith(":"):
                    self.comments += 1
                elif name in ("id", "event", "data"):
                    event[name] = value
                elif not line and event:
                    self.events.append(event)
                    event = {}
        self.over = True

    async def until(self, count: int) -> list[str]:
        await eventually(lambda: _is(len(self.reported) >= count))
        return self.reported

    @property
    def reported(self) -> list[str]:
        return [json.loads(event["data"])["message"] for event in self.events if event["event"] == "event"]


async def append_events(api: Api, job: dict[str, Any], *messages: str) -> None:
    body = {"fence": job["lease"]["fence"], "events": [{"message": message} for message in messages]}
    api.ok(await api.post(f"/v1/jobs/{job['id']}/events", body), 201)


async def test_a_job_is_followed_from_its_first_event_to_its_last(api: Api) -> None:
    job = await api.running()
    await append_events(api, job, "one", "two")
    async with Stream(api, f"/v1/jobs/{job['id']}/events/stream") as stream:
        assert await stream.until(2) == ["one", "two"]
        assert [event["id"] for event in stream.events] == ["1", "2"]
        await append_events(api, job, "three")
        assert await stream.until(3) == ["one", "two", "three"]
        api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": job["lease"]["fence"]}))
        await eventually(lambda: _is(stream.over))
        assert stream.events[-1]["event"] == "end"


async def test_a_stream_resumes_after_the_last_event(api: Api) -> None:
    job = await api.running()
    await append_events(api, job, "one", "two", "three")
    async with Stream(api, f"/v1/jobs/{job['id']}/events/stream", "1") as stream:
        assert await stream.until(2) == ["two", "three"]


async def test_the_stream_of_a_tenant_sends_new_events_and_resumes(api: Api) -> None:
    first, second = await api.running(type="a"), await api.running(type="b")
    await append_events(api, first, "before")
    async with Stream(api, "/v1/events/stream") as stream:
        await append_events(api, first, "one")
        await append_events(api, second, "two")
        assert sorted(await stream.until(2)) == ["one", "two"]
        place = stream.events[0]["id"]
        reported = stream.reported
    async with Stream(api, "/v1/events/stream", place) as stream:
        assert (await stream.until(1))[0] == reported[1]


async def test_a_quiet_stream_sends_keep_alives(api: Api) -> None:
    async with Stream(api, "/v1/events/stream") as stream:
        await eventually(lambda: _is(stream.comments >= 3))
        assert api.service.admission.waiting == 1
        assert api.service.admission.active == 0
    await eventually(lambda: _is(api.service.admission.waiting == 0))


async def test_a_malformed_feed_position_is_rejected(api: Api) -> None:
    job = await api.running()
    for odd in ("x", "-1", "9" * 30, "1.5"):
        headers = {"last-event-id": odd}
        assert pointer(await api.get(f"/v1/jobs/{job['id']}/events/stream", headers=headers)) == "/last-event-id"
        assert pointer(await api.get("/v1/events/stream", headers=headers)) == "/cursor"


async def test_the_feed_position_of_another_tenant_is_rejected(guarded: Api) -> None:
    mine, theirs = await guarded.as_role("read", tenant="mine"), await guarded.as_role("read", tenant="theirs")
    end = await guarded.engine.progress.feed_end("theirs")
    place = guarded.service.cursors.signing_key("theirs", "feed", [str(end)])
    assert pointer(await mine.get("/v1/events/stream", headers={"last-event-id": place})) == "/cursor"
    async with Stream(theirs, "/v1/events/stream", place):
        pass


async def test_too_many_streams_are_rejected_before_they_begin(
    store: Store, clock: ManualClock, options: Options
) -> None:
    async with (
        serving(store, clock, Options(tenant=options.tenant, most_waiting=1)) as api,
        Stream(api, "/v1/events/stream"),
    ):
        await eventually(lambda: _is(api.service.admission.waiting == 1))
        problem(await api.get("/v1/events/stream"), 503, "overloaded")


async def _is(fact: bool) -> bool:
    return fact
