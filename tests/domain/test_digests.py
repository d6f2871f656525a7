"""The bytes that digests cover, to the letter, and how metadata carries them."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest

from interlock.domain.digests import (
    StepFields,
    carried,
    merge,
    of_creation,
    of_decision,
    of_fields,
    of_request,
    of_steps,
    of_text,
)
from interlock.domain.job import NewJob


def hexed(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def test_a_text_is_digested_as_it_is_stored() -> None:
    assert of_text('{"ä": 1.0}') == hexed('{"ä": 1.0}')


def test_options_are_digested_field_by_field() -> None:
    plain = NewJob(id="j", type="t", payload="[1]", created_by="user:a")
    assert carried(of_creation(plain)) == {
        "options": hexed("1:t1:0--1:3----0:----0:-----6:user:a---"),
        "payload": hexed("[1]"),
    }
    full = NewJob(
        id="j", type="t", priority=-5, deadline=99, timeout_seconds=1.5, max_attempts=7, backoff="{}",
        expiry_delay_seconds=50.0, headers='{"a":1}', traceparent="00-1", tags=("x", "ÿ"), agent_kind="k", agent_id="i",
        affinity_key="f", repository="r", requires=("gpu",), idempotency_key="key", body_sha256=b"\x01\xff",
        webhook="w", parent_id="p", redrive_of="o", created_by="user:a", requested_by="b", limits="[]",
        budget="{}",
    )  # fmt: skip
    text = '1:t2:-52:997:15000001:72:{}8:500000007:{"a":1}4:00-17:1:x2:ÿ1:k1:i1:f1:r5:3:gpu3:key4:01ff1:w1:p1:o6:user:a1:b2:[]2:{}'
    assert carried(of_creation(full))["options"] == hexed(text)


# The ID is part of the chain; the others control the due time and the enqueue, and are not stored with the job.
NOT_DIGESTED = {"id", "run_at", "delay_seconds", "fault", "key_lifetime_seconds"}


@pytest.mark.parametrize("field", [name for name in NewJob._fields if name not in NOT_DIGESTED])
def test_every_field_of_a_new_job_is_digested(field: str) -> None:
    job = NewJob(id="j", type="t", created_by="user:a")
    other: dict[str, Any] = {
        "payload": "[]", "priority": 1, "deadline": 1, "timeout_seconds": 1.0, "max_attempts": 9,
        "expiry_delay_seconds": 1.0, "tags": ("a",), "requires": ("a",), "body_sha256": b"a",
    }  # fmt: skip
    assert of_creation(job._replace(**{field: other.get(field, "other")})) != of_creation(job)


def test_steps_are_digested_one_after_another() -> None:
    first = StepFields(1, "search", 1, None, 3, 99, 0, of_text('"a"'))
    second = StepFields(2, "draft", 2, "f", 3, 100, 1, of_text('"b"'))
    text = f"1:16:search1:1-1:32:991:064:{hexed(chr(34) + 'a' + chr(34))}"
    assert of_steps([first]) == hexed(text)
    text += f"1:25:draft1:21:f1:33:1001:164:{hexed(chr(34) + 'b' + chr(34))}"
    assert of_steps([first, second]) == hexed(text)
    assert of_steps([]) is None


def test_a_request_and_a_decision_are_digested_with_all_fields() -> None:
    request = of_request("id", 3, "Go?", None, "high", "{}", "d", 2, "fail", "approval", "worker:w", 5, 60, None, 2)
    assert request == hexed("2:id1:33:Go?-4:high2:{}1:d1:24:fail8:approval8:worker:w1:52:60-1:2")
    decision = of_decision("approved", "user:a", "ok", None, [("user:b", "approve", None, 7)])
    assert decision == hexed("8:approved6:user:a2:ok-6:user:b7:approve-1:7")
    assert of_fields(7, "[]") == hexed("1:72:[]")


def test_digests_follow_the_other_metadata() -> None:
    assert merge(None, {}) is None
    assert merge('{"a":1}', {}) == '{"a":1}'
    assert merge(None, {"b": "x", "a": None}) == '{"digests":{"a":null,"b":"x"}}'
    assert merge("{}", {"a": "x"}) == '{"digests":{"a":"x"}}'
    whole = merge('{"error":{"digests":{"a":"forged"}},"n":1}', {"a": "x"})
    assert json.loads(whole or "")["digests"] == {"a": "x"}
    assert carried(whole) == {"a": "x"}
    assert carried('{"error":{"digests":{"a":"forged"}}}') == carried(None) == carried('"digests":') == {}
