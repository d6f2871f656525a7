"""Bodies: judged as text before anything is made of them, and refused at the edge of every limit."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from interlock import assemble, config
from interlock.cli import serve
from interlock.storage.contract import Store
from tests.api.rig import JSON, Api, pointer, problem, serving
from tests.support.stores import ManualClock

KIB = 1024
MALFORMED = [
    b"", b"{", b'{"type":"a"}x', b"nope", b'{"type":"a","type":"b"}', b'{"type":"a","payload":{"x":1,"x":2}}',
    b'{"type":"a","payload":NaN}', b'{"type":"a","payload":-Infinity}', b'{"type":"a","payload":' + b"[" * 65 + b"]" * 65 + b"}",
    b"[" * 100_000, b'{"type":"a","payload":"\xff"}', b'\xef\xbb\xbf{"type":"a"}', b"{'type':'a'}", b'{"type":"a",}',
    b'{"type":"\x01"}',
]  # fmt: skip
OUT_OF_RANGE = {
    b'{"type":"a","priority":99999999999999999999}': "/priority",
    b'{"type":"a","payload":"\\ud800"}': "/payload",
    b'[{"type":"a"}]': "",
    b'"type"': "",
    b"null": "",
}


async def test_a_body_that_is_not_strict_json_is_malformed(api: Api) -> None:
    for body in MALFORMED:
        encoded = problem(await api.send("/v1/jobs", body), 400, "malformed")
        assert len(json.dumps(encoded)) < 5000
    assert api.ok(await api.get("/v1/jobs"))["items"] == []


async def test_ambiguous_json_is_rejected_with_its_pointer(api: Api) -> None:
    for body, where in OUT_OF_RANGE.items():
        assert pointer(await api.send("/v1/jobs", body)) == where, body


async def test_sixty_four_levels_are_accepted(api: Api) -> None:
    body = b'{"type":"a","payload":' + b"[" * 63 + b"]" * 63 + b"}"
    assert (await api.send("/v1/jobs", body)).status_code == 201


async def test_only_json_is_accepted(api: Api) -> None:
    body = b'{"type":"a"}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml",
                 "application/json; charset=latin-1", "application/jsonp", ""):  # fmt: skip
        response = await api.http.post("/v1/jobs", content=body, headers={"content-type": kind})
        problem(response, 415, "unsupported_media_type")
    for kind in ("application/json", "Application/JSON; charset=UTF-8", "application/json;charset=utf-8",
                 'application/json; charset="utf-8"'):  # fmt: skip
        assert (await api.http.post("/v1/jobs", content=body, headers={"content-type": kind})).status_code == 201


async def test_an_invalid_entry_of_a_map_is_named_by_its_pointer(api: Api) -> None:
    assert pointer(await api.post("/v1/jobs", {"type": "a", "headers": {"x": 1}})) == "/headers"


async def test_a_compressed_body_is_never_decompressed(api: Api) -> None:
    bomb = gzip.compress(b'{"type":"a","payload":"' + b"a" * 10_000_000 + b'"}')
    for coding in ("gzip", "deflate", "br", "identity, gzip"):
        response = await api.http.post("/v1/jobs", content=bomb, headers=JSON | {"content-encoding": coding})
        problem(response, 415, "unsupported_media_type")


async def test_limits_apply_at_their_boundaries(api: Api) -> None:
    def job(payload: int) -> dict[str, Any]:
        return {"type": "a", "payload": "x" * (payload - 2)}

    assert (await api.post("/v1/jobs", job(256 * KIB))).status_code == 201
    problem(await api.post("/v1/jobs", job(256 * KIB + 1)), 413, "too_large")

    head = b'{"type":"a","payload":"x"'
    for size, status in ((1024 * KIB, 201), (1024 * KIB + 1, 413)):
        body = head + b" " * (size - len(head) - 1) + b"}"
        assert (await api.send("/v1/jobs", body)).status_code == status

    work = await api.running(type="edges")
    fence, path = work["lease"]["fence"], f"/v1/jobs/{work['id']}"
    for size, status in ((1024 * KIB + 1, 413), (1024 * KIB, 200)):
        body = b'{"fence":%d,"seq":1,"data":"%b"}' % (fence, b"x" * (size - 2))
        assert (await api.send(f"{path}/checkpoint", body, method="PUT")).status_code == status
    step = {"fence": fence, "name": "n", "occurrence": 0}
    for size, status in ((256 * KIB + 1, 413), (256 * KIB, 200)):
        assert (await api.post(f"{path}/steps", step | {"result": "x" * (size - 2)})).status_code == status
    for size, status in ((256 * KIB + 1, 413), (256 * KIB, 200)):
        response = await api.post(f"{path}/complete", {"fence": fence, "result": "x" * (size - 2)})
        assert response.status_code == status
    for length, status in ((200, 201), (201, 422)):
        assert (await api.post("/v1/jobs", {"type": "n" * length})).status_code == status


async def test_a_body_without_a_length_is_cut_off_at_the_limit(api: Api) -> None:
    async def endless() -> Any:
        yield b'{"type":"a","payload":"'
        for _ in range(100):
            yield b"x" * 64 * KIB

    problem(await api.http.post("/v1/jobs", content=endless(), headers=JSON), 413, "too_large")
    assert (await api.get("/healthz")).status_code == 200


async def test_a_chunked_body_is_accepted(api: Api) -> None:
    async def pieces() -> Any:
        yield b'{"type":'
        yield b'"a"}'

    assert (await api.http.post("/v1/jobs", content=pieces(), headers=JSON)).status_code == 201


async def test_a_body_where_none_is_allowed_is_rejected(api: Api) -> None:
    response = await api.http.request("GET", "/v1/jobs", content=b"{}", headers=JSON)
    problem(response, 413, "too_large")


async def test_invalid_unicode_of_a_worker_is_sanitized_and_marked_never_rejected(api: Api) -> None:
    job = await api.running()
    id, fence = job["id"], job["lease"]["fence"]
    event = b'{"fence":%d,"events":[{"message":"a\\ud800b","payload":{"k":"\\udfff"}}]}' % fence
    assert (await api.send(f"/v1/jobs/{id}/events", event)).status_code == 201
    (reported,) = api.ok(await api.get(f"/v1/jobs/{id}/events"))["items"]
    assert (reported["message"], reported["payload"], reported["sanitized"]) == ("a\ufffdb", {"k": "\ufffd"}, True)
    body = b'{"fence":%d,"error":{"message":"bad \\ud83d text","details":{"x":"\\ud800"}},"retryable":false}' % fence
    assert api.ok(await api.send(f"/v1/jobs/{id}/fail", body))["status"] == "failed"
    seen = await api.job(id)
    assert seen["error"]["message"] == "bad \ufffd text"
    assert seen["sanitized"] is True
    clean = await api.running(type="clean")
    api.ok(await api.post(f"/v1/jobs/{clean['id']}/complete", {"fence": clean["lease"]["fence"], "result": "fine"}))
    assert (await api.job(clean["id"]))["sanitized"] is False


# Two keys that replacing surrogates makes equal, beside one that stays as it is.
COLLIDING = b'{"\\ud800":1,"\\udc00":2,"x":3}'
COLLIDED = {"\ufffd": 2, "x": 3}


@pytest.mark.parametrize("outcome", ["complete", "fail", "retry"])
async def test_a_finish_whose_keys_become_equal_by_sanitizing_is_accepted(api: Api, outcome: str) -> None:
    job = await api.running()
    id, fence = job["id"], job["lease"]["fence"]
    if outcome == "complete":
        api.ok(await api.send(f"/v1/jobs/{id}/complete", b'{"fence":%d,"result":%b}' % (fence, COLLIDING)))
        assert (await api.job(id))["result"] == COLLIDED
    else:
        body = b'{"fence":%d,"error":{"message":"no","details":%b},"retryable":%b}'
        retryable = b"true" if outcome == "retry" else b"false"
        api.ok(await api.send(f"/v1/jobs/{id}/fail", body % (fence, COLLIDING, retryable)))
        assert (await api.job(id))["error"]["details"] == COLLIDED
    assert (await api.job(id))["sanitized"] is True
    assert api.ok(await api.get(f"/v1/jobs/{id}/history"))["items"][-1]["version"] == 3


async def test_progress_whose_keys_become_equal_by_sanitizing_is_accepted(api: Api) -> None:
    job = await api.running()
    path, fence = f"/v1/jobs/{job['id']}", job["lease"]["fence"]
    event = b'{"fence":%d,"events":[{"message":"m","payload":%b}]}' % (fence, COLLIDING)
    api.ok(await api.send(f"{path}/events", event), 201)
    api.ok(await api.send(f"{path}/steps", b'{"fence":%d,"name":"s","result":%b}' % (fence, COLLIDING)))
    api.ok(await api.send(f"{path}/checkpoint", b'{"fence":%d,"seq":1,"data":%b}' % (fence, COLLIDING), method="PUT"))
    heartbeat = b'{"fence":%d,"checkpoint":{"seq":2,"data":%b},"events":[{"message":"n","payload":%b}]}'
    api.ok(await api.send(f"{path}/heartbeat", heartbeat % (fence, COLLIDING, COLLIDING)))
    events = api.ok(await api.get(f"{path}/events"))["items"]
    (step,) = api.ok(await api.get(f"{path}/steps"))["items"]
    kept = [(one["payload"], one["sanitized"]) for one in events] + [(step["result"], step["sanitized"])]
    assert kept == [(COLLIDED, True)] * 3
    seen = await api.job(job["id"])
    assert (seen["checkpoint"], seen["checkpoint_seq"], seen["sanitized"]) == (COLLIDED, 2, True)


async def test_a_sanitized_summary_is_marked(api: Api) -> None:
    job = await api.running()
    body = {"fence": job["lease"]["fence"], "result_summary": "a\0b"}
    api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", body))
    seen = await api.job(job["id"])
    assert (seen["result_summary"], seen["sanitized"]) == ("a\ufffdb", True)


@pytest.mark.parametrize(
    "part",
    [
        b'"prompt":"Go \\ud800?"',
        b'"prompt":"Go?","details":' + COLLIDING,
        b'"prompt":"Go?","checkpoint":{"seq":1,"data":' + COLLIDING + b"}",
    ],
)
async def test_an_approval_with_invalid_unicode_is_requested_and_marked(api: Api, part: bytes) -> None:
    job = await api.running()
    body = b'{"fence":%d,%b}' % (job["lease"]["fence"], part)
    opened = api.ok(await api.send(f"/v1/jobs/{job['id']}/approvals", body), 201)
    assert opened["approval"]["status"] == "open"
    assert (await api.job(job["id"]))["sanitized"] is True


async def test_only_the_item_with_invalid_unicode_is_marked(api: Api) -> None:
    odd, clean = await api.running(type="odd"), await api.running(type="clean")
    items = b",".join(
        b'{"id":"%b","fence":%d,"outcome":"complete","result":"%b"}' % (job["id"].encode(), job["lease"]["fence"], text)
        for job, text in ((odd, b"\\ud800"), (clean, b"\\ud83d\\ude00"))
    )
    assert (await api.send("/v1/finishes", b'{"items":[' + items + b"]}")).status_code == 200
    assert [(await api.job(job["id"]))["sanitized"] for job in (odd, clean)] == [True, False]


async def test_surrogates_sent_as_bytes_are_replaced_too(api: Api) -> None:
    job = await api.running()
    body = b'{"fence":%d,"result":{"log":"a\xed\xa0\x80b"}}' % job["lease"]["fence"]
    api.ok(await api.send(f"/v1/jobs/{job['id']}/complete", body))
    seen = await api.job(job["id"])
    assert (seen["status"], seen["result"], seen["sanitized"]) == ("succeeded", {"log": "a\ufffdb"}, True)
    problem(await api.send("/v1/jobs", b'{"type":"a","payload":"\xed\xa0\x80"}'), 400, "malformed")


async def test_an_error_of_16_kib_is_stored_and_a_larger_one_rejected(api: Api) -> None:
    job = await api.running()
    room = 16 * 1024 - len('{"message":"","kind":"k","details":1}')
    for message in ("x" * room, "\n" * (room // 2)):
        path, error = f"/v1/jobs/{job['id']}/fail", {"message": message, "kind": "k", "details": 1}
        longer = error | {"message": message + "xx"}
        problem(await api.post(path, {"fence": 1, "error": longer}), 413, "too_large")
        assert (await api.job(job["id"]))["status"] == "running"
        api.ok(await api.post(path, {"fence": 1, "error": error, "retryable": False}))
        assert (await api.job(job["id"]))["error"] == error
        job = await api.running()


async def test_an_event_of_8_kib_is_stored_and_a_larger_one_rejected(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}"
    for i, (message, payload) in enumerate([("ä" * 4096, None), ("x" * 4096, "x" * 4094)]):
        event = {"message": message, "payload": payload} if payload else {"message": message}
        reported = [{"message": "fits"}, event | {"message": message + "x"}]
        for verb in ("events", "heartbeat"):
            refused = await api.post(f"{path}/{verb}", {"fence": 1, "events": reported})
            assert pointer(refused, 413, "too_large") == "/events/1"
        assert (await api.post(f"{path}/events", {"fence": 1, "events": [event]})).status_code == 201
        kept = api.ok(await api.get(f"{path}/events"))["items"]
        assert [(one["message"], one["payload"]) for one in kept[i:]] == [(message, payload)]


async def test_the_size_of_a_checkpoint_is_limited_by_the_settings(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    size = 3 * KIB * KIB
    settings = config.load({"limits": {"checkpoint": size}, "tenant": "large"}, environ={}, directory=tmp_path)
    async with serving(store, clock, serve.options(settings), limits=assemble.limits(settings)) as api:
        path, fits = f"/v1/jobs/{(await api.running())['id']}", "x" * (size - 2)
        api.ok(await api.put(f"{path}/checkpoint", {"fence": 1, "seq": 1, "data": fits}))
        heartbeat = {"fence": 1, "checkpoint": {"seq": 2, "data": fits}}
        api.ok(await api.post(f"{path}/heartbeat", heartbeat))
        problem(await api.put(f"{path}/checkpoint", {"fence": 1, "seq": 3, "data": fits + "x"}), 413, "too_large")
        approval = {"fence": 1, "prompt": "Go?", "checkpoint": {"seq": 3, "data": fits}}
        api.ok(await api.post(f"{path}/approvals", approval), 201)


async def test_limits_come_from_the_settings(store: Store, clock: ManualClock, tmp_path: Path) -> None:
    sizes = dict.fromkeys(("payload", "result", "checkpoint", "step", "headers"), 2048)
    given = {"limits": {**sizes, "error": 20_000, "event": 10_000, "body": 30_000, "batch": 2}, "tenant": "limited"}
    settings = config.load(given, environ={}, directory=tmp_path)
    async with serving(store, clock, serve.options(settings), limits=assemble.limits(settings)) as api:
        fits, over = "x" * 2046, "x" * 2047
        problem(await api.post("/v1/jobs", {"type": "work", "payload": over}), 413, "too_large")
        problem(await api.post("/v1/jobs", {"type": "work", "headers": {"h": "x" * 2041}}), 413, "too_large")
        job = await api.running(payload=fits, headers={"h": "x" * 2040})
        path = f"/v1/jobs/{job['id']}"
        saved = {"fence": 1, "seq": 1, "data": fits}
        problem(await api.put(f"{path}/checkpoint", saved | {"data": over}), 413, "too_large")
        api.ok(await api.put(f"{path}/checkpoint", saved))
        step = {"fence": 1, "name": "s", "result": fits}
        problem(await api.post(f"{path}/steps", step | {"result": over}), 413, "too_large")
        api.ok(await api.post(f"{path}/steps", step))
        event = {"message": "x" * 10_000}
        longer = [{"message": event["message"] + "x"}]
        problem(await api.post(f"{path}/events", {"fence": 1, "events": longer}), 413, "too_large")
        api.ok(await api.post(f"{path}/events", {"fence": 1, "events": [event]}), 201)
        error = {"message": "x" * (20_000 - len('{"message":""}'))}
        too_long = {"message": error["message"] + "x"}
        problem(await api.post(f"{path}/fail", {"fence": 1, "error": too_long}), 413, "too_large")
        problem(await api.post(f"{path}/complete", {"fence": 1, "result": over}), 413, "too_large")
        api.ok(await api.post(f"{path}/fail", {"fence": 1, "error": error}))
        many = [{"type": "work"}] * 3
        assert pointer(await api.post("/v1/jobs/batch", {"jobs": many})) == "/jobs"
        api.ok(await api.post("/v1/jobs/batch", {"jobs": many[1:]}), 201)
        items = [{"id": job["id"], "fence": 1}] * 3
        assert pointer(await api.post("/v1/heartbeats", {"items": items})) == "/items"
        finishes = [item | {"outcome": "complete"} for item in items]
        assert pointer(await api.post("/v1/finishes", {"items": finishes})) == "/items"
        assert (await api.send("/v1/jobs", b'{"type":"work"}'.ljust(30_000))).status_code == 201
        problem(await api.send("/v1/jobs", b'{"type":"work"}'.ljust(30_001)), 413, "too_large")
