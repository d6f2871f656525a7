"""Values that poison other queues: JSON text is stored and returned byte for byte, from every source."""

from __future__ import annotations

import pytest

from interlock.domain.lifecycle import Status
from tests.contract.builders import TenantQueue, cancel, complete, facts, fail, heartbeat, release, save

# All of these are JSON, or at least text that has passed the guard in front of the stores.
VALUES = {
    "an escaped NUL": r'"a\u0000b"',
    "nothing but NUL": r'"\u0000"',
    "a NUL in a key": r'{"\u0000": "\u0000"}',
    "an escaped pair": r'"\ud83d\ude00"',
    "an escaped lone surrogate": r'"\ud800"',
    "a replaced surrogate": '"\ufffd"',
    "raw emoji": '"🐢👩‍👩‍👧‍👦"',
    "the last characters": '"\uffff\U0010ffff"',
    "line separators": '"\u2028\u2029\u0085"',
    "right to left": '"\u202eevil\u202c"',
    "a float that is whole": "1.0",
    "negative zero": "-0.0",
    "a number beyond a double": "1e400",
    "a number that jsonb prints as 13 MB": "[" + ",".join(["1e131071"] * 100) + "]",
    "an integer beyond 64 bits": "9223372036854775808",
    "digits no double keeps": "0.1000000000000000055511151231257827021181583404541015625",
    "odd spaces": ' { "b" :\t1 ,\n "a": [ ] } ',
    "keys in no order": '{"b":1,"a":2,"B":3,"":4}',
    "the same key twice": '{"a":1,"a":2}',
    "as deep as allowed": "[" * 64 + "]" * 64,
    "null": "null",
    "an empty string": '""',
    "quotes and backslashes": r'"\"\\\/\b\f\n\r\t"',
    "what looks like SQL": '"\'; DROP TABLE job; --"',
    "what looks like an array": '"{NULL,\\"a\\"}"',
    "what looks like bytes": r'"\\x00ff"',
    "a percent sign": '"%s %1$s {0} $1 :name ?"',
    "as large as allowed": '"' + "ä" * 131_000 + '"',
}


async def test_a_payload_is_returned_byte_for_byte(queue: TenantQueue) -> None:
    """G02."""
    for kind, value in VALUES.items():
        id = await queue.add(payload=value)
        assert (await queue.job(id)).payload == value, kind
        (leased,) = await queue.claim()
        assert leased.payload == value, kind


async def test_result_and_checkpoint_are_returned_byte_for_byte(queue: TenantQueue) -> None:
    """P38: a finished result is never lost."""
    for kind, value in VALUES.items():
        job = await queue.running()
        await queue.checkpoint(save(job, 1, value))
        assert (await queue.job(job.id)).checkpoint == value, kind
        assert await queue.checkpoint(save(job, 1, value)) == 1, kind
        await queue.heartbeat(heartbeat(job, checkpoint=save(job, 2, value)))
        receipt = await queue.do(complete(job, result=value))
        assert receipt.status is Status.SUCCEEDED, kind
        now = await queue.job(job.id)
        assert (now.result, now.checkpoint) == (value, value), kind
    await queue.verify()


async def test_an_error_is_returned_byte_for_byte_and_the_audit_passes(queue: TenantQueue) -> None:
    for kind, value in VALUES.items():
        error = f'{{"message":"x","details":{value}}}'
        job = await queue.running(max_attempts=2)
        receipt = await queue.do(fail(job, error=error, retry_after_seconds=1.0))
        assert await queue.do(fail(job, error=error)) == receipt, kind
        now, rows = await queue.trace(job.id)
        assert now.error == error, kind
        assert (rows[-1].metadata or "").startswith(f'{{"error":{error},'), kind
        queue.clock.advance(1)
        second = await queue.again(job)
        assert second.error == error, kind
        await queue.do(fail(second, error=error))
    await queue.verify()


WORDS = [
    "größe",
    "🐢",
    "a'b\"c\\d",
    "{a,b}",
    "NULL",
    "%s",
    "\u202eabc",
    "e\u0301",
    "x" * 200,
    "tab\tand\nnewline",
    "\u0001\u007f",
]


@pytest.mark.parametrize("word", WORDS)
async def test_free_text_is_returned_unchanged_and_the_audit_passes(queue: TenantQueue, word: str) -> None:
    job = await queue.running(created_by=f"user:{word}", requested_by=word, tags=(word,), worker=word, type=word)
    assert (job.worker, job.type, tuple(job.tags), job.requested_by) == (word, word, (word,), word)
    await queue.do(release(job, reason=word))
    second = await queue.again(job, worker=word)
    await queue.do(cancel(job.id, reason=word, actor=f"token:{word}"))
    assert [reply.cancel_reason for reply in await queue.heartbeat(heartbeat(second))] == [word]
    await queue.do(complete(second, result_summary=word))
    now, rows = await queue.trace(job.id)
    assert (now.result_summary, now.cancel_reason) == (word, word)
    assert [row.reason for row in rows if row.verb == "release"] == [word]
    assert {row.actor for row in rows} == {f"user:{word}", f"worker:{word}", f"token:{word}"}
    assert facts(rows[-2]) == {"why": word}
    await queue.verify()


@pytest.mark.parametrize("word", WORDS)
async def test_unusual_names_match_exactly(queue: TenantQueue, word: str) -> None:
    id = await queue.add(type=word, requires=(word,), repository=word, affinity_key=word)
    none = {"capabilities": frozenset({word}), "repositories": frozenset({word}), "affinity_keys": frozenset({word})}
    assert await queue.claimed(types=frozenset({word + "x"}), **none) == []
    for name in ("capabilities", "repositories", "affinity_keys"):
        assert await queue.claimed(types=frozenset({word}), **none | {name: frozenset({"other"})}) == []
    assert await queue.claimed(types=frozenset({word}), **none) == [id]


async def test_numbers_at_the_limits_of_their_range_are_stored(queue: TenantQueue) -> None:
    far = 253_402_300_799_000_000  # the end of the year 9999
    id = await queue.add(run_at=far, deadline=far, timeout_seconds=0.000001, max_attempts=100, priority=-1000)
    job = await queue.job(id)
    assert (job.run_at, job.deadline, job.timeout_seconds, job.priority) == (far, far, 0.000001, -1000)
    held = await queue.running(type="big")
    assert await queue.checkpoint(save(held, 2**63 - 1)) == 2**63 - 1
    assert (await queue.job(held.id)).checkpoint_seq == 2**63 - 1


@pytest.mark.parametrize("where", ["payload", "result", "checkpoint", "error"])
async def test_sanitized_values_stay_marked(queue: TenantQueue, where: str) -> None:
    job = await queue.running(max_attempts=1)
    assert not job.sanitized
    if where == "checkpoint":
        await queue.checkpoint(save(job, 1, '"\ufffd"', sanitized=True))
    elif where == "result":
        await queue.do(complete(job, result='"\ufffd"', sanitized=True))
    elif where == "error":
        await queue.do(fail(job, error='{"message":"\ufffd"}', sanitized=True))
    assert (await queue.job(job.id)).sanitized is (where != "payload")
