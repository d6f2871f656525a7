"""Responses as programs read them: of a create, of an error, and the first event of a stream."""

from __future__ import annotations

from typing import Any

import apsw
import pytest

from interlock.errors import Error, Indeterminate, SchemaMismatch, StorageBroken, Unavailable
from interlock.storage.sqlite.connection import explain
from tests.api.documented import faults
from tests.api.rig import NEVER, Api, pointer, problem

BODIES: list[dict[str, Any]] = [
    {},
    {"payload": {"b": 1, "a": [1.0, -0.0, None], "n": "\u0000"}, "priority": -7, "tags": ["x", "y"], "max_attempts": 9},
    {"run_at": "2031-02-03T04:05:06.000007+01:00", "deadline": "2032-01-01T00:00:00Z", "timeout_seconds": 1.5},
    {"delay_seconds": 0.0000015},
    {"backoff": {"kind": "fixed", "base_seconds": 2}, "expiry_delay_seconds": 3, "headers": {"a": "b"}},
    {"affinity_key": "k", "repository": "Org/Repo.git", "requires": ["gpu", "cuda"], "requested_by": "me"},
    {"agent": {"kind": "planner", "id": "one"}, "webhook": "https://example.com/hook", "idempotency_key": "once"},
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: ", ".join(body) or "nothing")
async def test_a_create_returns_the_same_job_as_a_get(api: Api, body: dict[str, Any]) -> None:
    made = await api.enqueue(**body)
    assert made == await api.job(made["id"])
    keyless = {name: value for name, value in body.items() if name != "idempotency_key"}
    batch = api.ok(await api.post("/v1/jobs/batch", {"jobs": [{"type": "work", **keyless}]}), 201)["jobs"]
    seen = await api.job(batch[0]["id"])
    assert batch == [seen | {"replayed": False}]


async def test_a_blocked_job_is_returned_as_blocked_on_creation(api: Api) -> None:
    api.ok(await api.put("/v1/agents/planner/serial", {"max_concurrency": 1}))
    first, second = [await api.enqueue(agent={"kind": "planner", "id": "serial"}) for _ in range(2)]
    assert (first["location"], second["location"]) == ("ready", "blocked")


async def test_a_replay_returns_the_current_job(api: Api) -> None:
    made = await api.enqueue(idempotency_key="once")
    await api.claim()
    again = await api.post("/v1/jobs", {"type": "work", "idempotency_key": "once"})
    assert (again.status_code, again.headers["idempotent-replay"]) == (200, "true")
    assert (again.json()["id"], again.json()["status"]) == (made["id"], "running")
    batch = await api.post("/v1/jobs/batch", {"jobs": [{"type": "work", "idempotency_key": "once"}]})
    assert [(one["status"], one["replayed"]) for one in batch.json()["jobs"]] == [("running", True)]


async def test_a_first_run_has_no_progress_and_a_second_has_it(api: Api) -> None:
    job = await api.running()
    assert (job["steps"], job["approval"]) == ([], None)
    fence = job["lease"]["fence"]
    api.ok(await api.post(f"/v1/jobs/{job['id']}/steps", {"fence": fence, "name": "s", "result": 1}))
    api.ok(await api.post(f"/v1/jobs/{job['id']}/release", {"fence": fence}))
    (again,) = await api.claim(claim_id="c")
    assert [step["name"] for step in again["steps"]] == ["s"]
    body = {"fence": again["lease"]["fence"], "name": "t", "result": 2}
    api.ok(await api.post(f"/v1/jobs/{job['id']}/steps", body))
    (repeated,) = await api.claim(claim_id="c")
    assert [step["name"] for step in repeated["steps"]] == ["s", "t"]


async def test_a_repeated_claim_returns_the_steps_of_its_own_run(api: Api) -> None:
    await api.enqueue()
    (job,) = await api.claim(claim_id="c")
    api.ok(await api.post(f"/v1/jobs/{job['id']}/steps", {"fence": job["lease"]["fence"], "name": "s", "result": 1}))
    (again,) = await api.claim(claim_id="c")
    assert [step["name"] for step in again["steps"]] == ["s"]


async def test_a_rejection_contains_its_details(api: Api) -> None:
    job = await api.running()
    lost = problem(await api.post(f"/v1/jobs/{job['id']}/complete", {"fence": 99}), 409, "lease_lost")
    assert (lost["job_id"], lost["fence"]) == (job["id"], 99)
    unknown = problem(await api.get(f"/v1/jobs/{NEVER}"), 404, "not_found")
    assert (unknown["what"], unknown["job_id"]) == ("job", NEVER)
    agent = problem(await api.get("/v1/agents/planner/nobody"), 404, "not_found")
    assert (agent["what"], agent["id"]) == ("agent", "planner/nobody")
    assert "job_id" not in agent
    queued = await api.enqueue(type="other")
    stale = await api.call("PATCH", f"/v1/jobs/{queued['id']}", {"priority": 1}, headers={"if-match": '"9"'})
    reported = problem(stale, 412, "precondition_failed")
    assert (reported["expected"], reported["version"]) == (9, 1)
    large = problem(await api.post("/v1/jobs", {"type": "work", "payload": "x" * 300_000}), 413, "too_large")
    assert (large["what"], large["limit"]) == ("payload", 256 * 1024)
    (item,) = api.ok(
        await api.post("/v1/finishes", {"items": [{"id": job["id"], "fence": 99, "outcome": "complete"}]})
    )["items"]
    assert (item["error"]["code"], item["error"]["fence"]) == ("lease_lost", 99)


async def test_events_are_listed_after_a_number(api: Api) -> None:
    job = await api.running()
    path = f"/v1/jobs/{job['id']}/events"
    reported = [{"message": f"m{number}", "id": f"event {number}"} for number in range(4)]
    for _ in range(2):
        body = {"fence": job["lease"]["fence"], "events": reported}
        assert api.ok(await api.post(path, body), 201) == {"seqs": [1, 2, 3, 4]}
    page = api.ok(await api.get(f"{path}?after=1&limit=2"))
    assert [event["message"] for event in page["items"]] == ["m1", "m2"]
    rest = api.ok(await api.get(path, params={"cursor": page["next_cursor"], "limit": 2}))
    assert [event["message"] for event in rest["items"]] == ["m3"]
    assert api.ok(await api.get(f"{path}?after=4"))["items"] == []
    assert pointer(await api.get(path, params={"cursor": page["next_cursor"], "after": 1})) == "/after"
    for wrong in ("-1", "x", "null", "9223372036854775808"):
        assert pointer(await api.get(path, params={"after": wrong})) == "/after"


@pytest.mark.parametrize("name", ["stale_seconds", "created_after", "created_before"])
async def test_null_is_not_a_parameter_value(api: Api, name: str) -> None:
    assert pointer(await api.get("/v1/jobs", params={name: "null"})) == f"/{name}"


def test_an_undocumented_member_is_detected() -> None:
    """The check of every response of these tests finds unexpected and missing members at any depth."""
    page = {"$ref": "#/components/schemas/DeliveryPage"}
    assert list(faults(page, {"items": [], "next_cursor": None})) == []
    assert list(faults(page, {"items": [], "next_cursor": None, "more": 1})) == ["/more is not in the document"]
    assert "/items/0/secret is not in the document" in faults(page, {"items": [{"secret": 1}], "next_cursor": None})
    assert list(faults(page, {"items": []})) == ["/next_cursor is missing"]


async def test_subscriptions_and_deliveries_match_their_documentation(api: Api) -> None:
    wanted = {"url": "https://example.com/hook", "events": ["job.queued"]}
    made = api.ok(await api.post("/v1/subscriptions", wanted), 201)
    await api.enqueue()
    path = f"/v1/subscriptions/{made['id']}"
    (sent,) = api.ok(await api.get(f"{path}/deliveries"))["items"]
    api.ok(await api.post(f"{path}/deliveries/{sent['id']}/redeliver"))
    api.ok(await api.get(path))
    assert len(api.ok(await api.get("/v1/subscriptions"))["items"]) == 1


SECRET = "/srv/secret/jobs.db"


@pytest.mark.parametrize(
    "error",
    [
        explain(apsw.FullError("database or disk is full"), SECRET),
        explain(apsw.BusyError("database is locked"), SECRET),
        explain(apsw.CorruptError(f"database disk image {SECRET} is malformed"), SECRET),
        explain(apsw.ReadOnlyError("attempt to write a readonly database"), SECRET),
        explain(apsw.CantOpenError(f"unable to open {SECRET}"), SECRET),
        Unavailable(f"PostgreSQL cannot be reached: could not connect to {SECRET}"),
        Indeterminate(f"PostgreSQL cannot be reached: {SECRET}"),
        Unavailable(f"shard one: {SECRET}"),
        StorageBroken(f"{SECRET} was deleted or replaced"),
        SchemaMismatch(f"{SECRET} has a later schema"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_storage_errors_reveal_no_file_or_host(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Error
) -> None:
    async def broken(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(api.engine.registry, "types", broken, raising=False)
    monkeypatch.setattr(api.service, "give_up", lambda error: None)  # else the server stops, and the test with it
    encoded = await api.get("/v1/types")
    assert encoded.status_code == 503
    assert "secret" not in encoded.text
    assert len(encoded.json()["detail"]) > 20
    assert SECRET in capsys.readouterr().out
