"""How the keys of an issuer are added, removed, and kept while it is unavailable (F34, S13)."""

from __future__ import annotations

import asyncio
import json

import pytest
from joserfc.jwk import OctKey, RSAKey

from interlock.engine.jwks import BETWEEN_FETCHES_SECONDS, LAST_GOOD_SECONDS, LOOK_FIRST_SECONDS
from interlock.engine.jwt import LEEWAY_SECONDS
from interlock.engine.ttl_cache import FRESH_SECONDS
from interlock.errors import Unauthenticated
from tests.engine.issuers import (
    NOW,
    RSA_A,
    RSA_B,
    STRANGER,
    World,
    claims,
    public,
    signed,
)
from tests.support.eventually import RETRY_SECONDS, eventually


async def test_many_unknown_key_ids_cause_one_fetch_in_half_a_minute(world: World) -> None:
    unknown = [signed(header={"kid": f"no-{i}"}) for i in range(20)]
    for _ in range(500):
        assert all(await asyncio.gather(*(world.rejects(text) for text in unknown)))
    assert len(world.site.asked) == 1
    world.now += BETWEEN_FETCHES_SECONDS - 0.1
    assert await world.rejects(unknown[0])
    assert len(world.site.asked) == 1
    world.now += 0.1
    assert all(await asyncio.gather(*(world.rejects(text) for text in unknown)))
    assert len(world.site.asked) == 2


async def test_a_new_key_is_found_without_a_restart(world: World) -> None:
    assert not await world.rejects(signed())
    world.site.publish(RSA_A, RSA_B)
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.rejects(signed(key=RSA_B))
    assert not await world.rejects(signed(key=RSA_A))


async def test_a_removed_key_is_rejected_within_five_minutes(world: World) -> None:
    assert not await world.rejects(signed())
    world.site.publish(RSA_B)
    world.now += LOOK_FIRST_SECONDS
    assert await world.rejects(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))


async def test_keys_in_use_are_refreshed_in_the_background(world: World) -> None:
    assert not await world.rejects(signed())
    world.site.publish(RSA_B)
    world.site.open.clear()
    world.now += 200
    assert not await world.rejects(signed())  # answered from the keys at hand
    await eventually(lambda: _true(len(world.site.asked) == 2))
    world.site.open.set()
    await eventually(lambda: _true(world.site.answers == 2))
    world.now += FRESH_SECONDS
    assert await world.rejects(signed())
    assert len(world.site.asked) == 2


async def test_a_hot_token_is_verified_about_once_a_second_but_never_beyond_its_expiry(world: World) -> None:
    text = signed(claims(exp=NOW + 1))
    first = await world.enter(text)
    assert await world.enter(text) is first
    world.now += FRESH_SECONDS
    assert await world.enter(text) is not first
    world.now = NOW + 1 + LEEWAY_SECONDS - 0.1
    assert not await world.rejects(text)
    world.now += 0.1
    assert await world.rejects(text)


async def test_an_issuer_that_withdraws_all_keys_is_believed(world: World) -> None:
    assert not await world.rejects(signed())
    world.site.publish()
    world.now += LOOK_FIRST_SECONDS
    assert await world.rejects(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))


GARBAGE: dict[str, bytes] = {
    "nothing": b"",
    "html": b"<html>Service Unavailable</html>",
    "a list": b"[]",
    "no keys": b"{}",
    "keys no list": b'{"keys": {}}',
    "keys no keys": b'{"keys": [1, "a", null, {}, {"kty": "RSA"}]}',
    "only a secret": json.dumps({"keys": [OctKey.generate_key(256, {"kid": "a"}).as_dict(private=True)]}).encode(),
    "a private key": json.dumps({"keys": [STRANGER.as_dict(private=True)]}).encode(),
    "for encryption": json.dumps({"keys": [STRANGER.as_dict(private=False, use="enc")]}).encode(),
    "for signing only": json.dumps({"keys": [STRANGER.as_dict(private=False, key_ops=["sign"])]}).encode(),
    "broken numbers": json.dumps({"keys": [{"kty": "RSA", "kid": "a", "n": "AQ", "e": "AQAB"}]}).encode(),
    "too many": json.dumps({"keys": [STRANGER.as_dict(private=False)] * 101}).encode(),
    "too large": b'{"keys": []' + b" " * 300_000 + b"}",
    "keys twice": b'{"keys": [], "keys": []}',
    "deep": b'{"keys": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_from_an_issuer_changes_nothing(world: World, garbage: bytes) -> None:
    assert not await world.rejects(signed())
    world.site.answer = lambda: garbage
    world.now += LOOK_FIRST_SECONDS
    assert not await world.rejects(signed(claims(iat=int(world.now), exp=int(world.now) + 60)))
    assert len(world.site.asked) == 2


async def test_one_bad_key_does_not_affect_the_others(world: World) -> None:
    keys = public(RSA_A)["keys"]
    world.site.answer = lambda: json.dumps({"keys": [{"kty": "??"}, 7, {"kty": "EC", "kid": "a"}, *keys]}).encode()
    assert not await world.rejects(signed())


async def test_while_an_issuer_is_unavailable_its_last_keys_are_used_for_a_day(world: World) -> None:
    def fresh() -> str:
        return signed(claims(iat=int(world.now), exp=int(world.now) + 60))

    assert not await world.rejects(fresh())
    world.site.fall_over()
    world.now += LAST_GOOD_SECONDS
    assert not await world.rejects(fresh())
    world.now += 1
    assert await world.rejects(fresh())
    world.site.publish(RSA_A)
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.rejects(fresh())


async def test_while_an_issuer_is_unavailable_no_caller_waits_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not await world.rejects(signed())
    world.site.fall_over()
    world.now += LOOK_FIRST_SECONDS
    assert not await world.rejects(signed())
    world.site.open.clear()
    world.now += BETWEEN_FETCHES_SECONDS
    monkeypatch.setattr("interlock.engine.jwks.FETCH_SECONDS", 2 * RETRY_SECONDS)
    async with asyncio.timeout(RETRY_SECONDS):
        assert not await world.rejects(signed())
    await eventually(lambda: _true(len(world.site.asked) == 3))


async def test_an_unresponsive_issuer_times_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interlock.engine.jwks.FETCH_SECONDS", 0.01)
    world.site.open.clear()
    async with asyncio.timeout(RETRY_SECONDS):
        assert await world.rejects(signed())


async def test_an_issuer_that_never_responded_is_retried_later(world: World) -> None:
    world.site.fall_over()
    assert await world.rejects(signed())
    world.site.publish(RSA_A)
    assert await world.rejects(signed())
    world.now += BETWEEN_FETCHES_SECONDS
    assert not await world.rejects(signed())


async def test_a_weak_key_is_rejected(world: World) -> None:
    with pytest.warns(match="2048"):
        weak = RSAKey.generate_key(1024, {"kid": "weak"}, auto_kid=False)
    numbers = weak.as_dict(private=False)
    world.site.answer = lambda: json.dumps({"keys": [numbers, *public(RSA_A)["keys"]]}).encode()
    assert await world.rejects(signed(key=weak))
    assert not await world.rejects(signed())


async def test_closing_ends_a_fetch_in_progress(world: World) -> None:
    world.site.open.clear()
    caller = asyncio.create_task(world.enter(signed()))
    await eventually(lambda: _true(bool(world.site.asked)))
    await world.issuers.close()
    with pytest.raises((Unauthenticated, asyncio.CancelledError)):
        await caller


async def _true(value: bool) -> bool:
    return value
