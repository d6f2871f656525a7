"""Totals of usage over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.rig import Api, pointer


async def uses(api: Api, usage: dict[str, float] | None, **job: Any) -> dict[str, Any]:
    made = await api.running(**job)
    body = {"fence": made["lease"]["fence"], "usage": usage}
    api.ok(await api.post(f"/v1/jobs/{made['id']}/complete", body))
    return made


async def test_usage_is_summed_by_the_member_that_was_asked_for(api: Api) -> None:
    await uses(api, {"usd": 1.0, "tokens": 900}, type="summarize")
    job = await uses(api, {"usd": 0.5}, type="summarize", agent={"kind": "bot", "id": "a"})
    await uses(api, None, type="summarize")
    usage = {"usd": 1.5, "tokens": 900}
    assert api.ok(await api.get("/v1/usage?by=type")) == {
        "items": [{"type": "summarize", "jobs": 2, "usage": usage}], "next_cursor": None,
    }  # fmt: skip
    assert api.ok(await api.get("/v1/usage")) == api.ok(await api.get("/v1/usage?by=type"))
    assert api.ok(await api.get("/v1/usage?by=agent"))["items"] == [
        {"agent": None, "jobs": 1, "usage": {"usd": 1.0, "tokens": 900}},
        {"agent": {"kind": "bot", "id": "a"}, "jobs": 1, "usage": {"usd": 0.5}},
    ]
    day = (await api.job(job["id"]))["finished_at"][:10]
    assert api.ok(await api.get("/v1/usage?by=day"))["items"] == [{"day": day, "jobs": 2, "usage": usage}]
    range = {"from": f"{day}T00:00:00Z", "to": f"{day}T23:59:59.999999Z"}
    assert len(api.ok(await api.get("/v1/usage", params={"by": "tree", **range}))["items"]) == 2
    assert api.ok(await api.get("/v1/usage", params={"to": range["from"]}))["items"] == []
    trees = api.ok(await api.get("/v1/usage?by=tree"))["items"]
    assert {"tree": job["id"], "jobs": 1, "usage": {"usd": 0.5}} in trees
    assert len(trees) == 2


async def test_totals_have_pages(api: Api) -> None:
    for type in ("a", "b", "c"):
        await uses(api, {"usd": 1}, type=type)
    first = api.ok(await api.get("/v1/usage?by=type&limit=2"))
    rest = api.ok(await api.get(f"/v1/usage?by=type&limit=2&cursor={first['next_cursor']}"))
    assert [one["type"] for one in first["items"] + rest["items"]] == ["a", "b", "c"]
    assert rest["next_cursor"] is None


@pytest.mark.parametrize(
    ("query", "where"),
    [
        ("by=color", "/by"),
        ("from=yesterday", "/from"),
        ("from=2026-01-01T00:00:00Z&to=2027-01-02T00:00:01Z", "/from"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-02T00:00:00Z", "/from"),
        ("to=2026-01-02T00:00:00", "/to"),
    ],
)
async def test_a_wrong_range_is_refused(api: Api, query: str, where: str) -> None:
    assert pointer(await api.get(f"/v1/usage?{query}")) == where
