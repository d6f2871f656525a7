"""The search for jobs: by ID, by its end, by idempotency key, and by text in the newest jobs."""

from __future__ import annotations

import msgspec
import pytest

from interlock.domain.decide import FailJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine import queries
from interlock.engine.engine import Engine
from interlock.errors import Invalid
from interlock.wire import JobRequest


async def add(engine: Engine, who: Principal, payload: str = "{}", **more: object) -> str:
    request = JobRequest(type="t", payload=msgspec.Raw(payload.encode()), **more)  # type: ignore[arg-type]
    return (await engine.jobs.enqueue(who, request)).id


async def found(engine: Engine, who: Principal, text: str, limit: int = 50) -> list[str]:
    return [job.id for job in await engine.queries.search(who.tenant, text, limit=limit)]


async def test_text_is_found_in_payload_error_tags_and_requester(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    failing = await add(engine, who)
    (job,) = await engine.leases.claim(who.tenant, ClaimFilter("w", frozenset({"t"})))
    error = '{"message": "the Needle broke", "kind": "E"}'
    await engine.leases.fail(who.tenant, FailJob(job.id, job.fence, "w", error, retryable=False))
    payload = await add(engine, who, '{"a": ["x needles y"]}')
    tagged = await add(engine, who, tags=["NEEDLE-1", "other"])
    asked = await add(engine, who, requested_by="ada.needle@example.org")
    await add(engine, who, '{"a": "hay"}')
    assert await found(engine, who, "needle") == [asked, tagged, payload, failing]
    assert await found(engine, who, "needle", limit=2) == [asked, tagged]
    assert await found(engine, who, "thread") == []
    assert await found(engine, Principal("another", who.actor, who.roles), "needle") == []


async def test_an_exact_match_comes_before_newer_text(interlock_engine: Engine, who: Principal) -> None:
    engine = interlock_engine
    keyed = await add(engine, who, idempotency_key="order-7")
    newer = await add(engine, who, '"about order-7"')
    assert await found(engine, who, "order-7") == [keyed, newer]
    assert await found(engine, who, "order-7", limit=1) == [keyed]
    mentions = await add(engine, who, f'"{keyed}"')
    assert await found(engine, who, keyed[-8:]) == [keyed, mentions]
    assert await found(engine, who, keyed.upper()) == [keyed, mentions]


@pytest.mark.parametrize("text", ['say "hi"', "back\\slash", "tab\tbed", "größe", "%_", "'; drop"])
async def test_text_is_found_as_it_is_spelled(interlock_engine: Engine, who: Principal, text: str) -> None:
    payload = msgspec.json.encode({"text": f"before {text} after"}).decode()
    id = await add(interlock_engine, who, payload)
    await add(interlock_engine, who, '"anything else"')
    assert await found(interlock_engine, who, text) == [id]


async def test_text_is_found_in_a_payload_whose_client_escapes_it(interlock_engine: Engine, who: Principal) -> None:
    escaped = await add(interlock_engine, who, '{"to": "Caf\\u00e9 \\ud83d\\ude00"}')
    plain = await add(interlock_engine, who, '{"to": "Café 😀"}')
    capital = await add(interlock_engine, who, '{"to": "Caf\\u00E9 \\uD83D\\uDE00"}')
    assert await found(interlock_engine, who, "café 😀") == [capital, plain, escaped]
    assert await found(interlock_engine, who, "café 😀", limit=2) == [capital, plain]


async def test_text_is_searched_within_bounds(
    interlock_engine: Engine, who: Principal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "SEARCHED_JOBS", 2)
    monkeypatch.setattr(queries, "SEARCHED_CHARS", 20)
    await add(interlock_engine, who, '"needle"')
    near = await add(interlock_engine, who, '"needle"')
    await add(interlock_engine, who, f'"{"x" * 20}needle"')
    assert await found(interlock_engine, who, "needle") == [near]


@pytest.mark.parametrize("text", ["", "x" * 201, "a\x00b"])
async def test_an_invalid_search_is_rejected(interlock_engine: Engine, who: Principal, text: str) -> None:
    with pytest.raises(Invalid):
        await found(interlock_engine, who, text)
