"""A job in an answer: every field under its own name, and none that is not documented."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from interlock import wire
from interlock.domain.job import FIELDS, UNLISTED, Job, Kind
from interlock.domain.job_tree import shares_of
from interlock.domain.lifecycle import Status
from interlock.wire import responses
from interlock.wire.job import job_fields, job_of, job_to_dict, listed_job_to_dict

NOON = 1_763_294_400_000_000
TIMES = (
    "run_at", "deadline", "cancel_requested_at", "created_at", "updated_at", "started_at", "run_started_at",
    "heartbeat_at", "finished_at", "acknowledged_at",
)  # fmt: skip
TEXTS = ("payload", "budget", "headers", "backoff", "limits", "checkpoint", "usage", "result", "error")
FOLDED = {"agent_kind", "agent_id", "worker", "fence", "lease_expires_at", "blocked", "awaiting_message"}


def different_everywhere() -> Job:
    """A job no two fields of which are alike."""
    values = {name: f"the {name}" for name in Job._fields}
    values |= {name: f'{{"{name}": "kept  as it is"}}' for name in TEXTS}
    numbers = ("seq", "priority", "attempt", "max_attempts", "fence", "checkpoint_seq", "version", "releases")
    fixed = {
        **{name: NOON + i for i, name in enumerate((*TIMES, "lease_expires_at"))},
        **{name: 100 + i for i, name in enumerate(numbers)},
        **{name: [f"one of {name}"] for name in ("tags", "requires", "awaiting")},
        "status": Status.RUNNING, "timeout_seconds": 1.5, "expiry_delay_seconds": 2.5, "sanitized": True,
        "blocked": False, "awaiting_message": None, "webhook": "https://example.com/hook",
    }  # fmt: skip
    return Job._make((values | fixed)[name] for name in Job._fields)


def test_every_field_of_a_job_is_encoded_under_its_name() -> None:
    job = different_everywhere()
    reported = json.loads(msgspec.json.encode(responses.Job(*job_fields(job, now=0))))
    for name, value in job._asdict().items():
        if name in FOLDED:
            assert name not in reported
        elif name in TIMES:
            assert reported[name] == wire.when(value), name
        elif name in TEXTS:
            assert reported[name] == json.loads(value), name
        elif name == "awaiting":
            assert reported[name] == {"children": value}
        else:
            assert reported[name] == value, name
    assert reported["agent"] == {"kind": job.agent_kind, "id": job.agent_id}
    assert reported["lease"] == {"worker": job.worker, "fence": job.fence, "expires_at": wire.when(NOON + len(TIMES))}
    assert reported["retry_count"] == job.attempt - 1
    assert reported["location"] == "in_progress"
    assert json.loads(msgspec.json.encode(job_to_dict(job, now=0))) == reported


def test_budgets_are_members_of_their_own_and_come_back() -> None:
    entries = [
        {"name": "provider", "key": "acme", "cost": {"tokens": 10.0}},
        {"name": "budget:team", "key": None, "cost": {"usd": 0.5}},
        {"name": "tree:0193", "key": "0193", "cost": {"usd": 0.5}},
    ]
    job = different_everywhere()._replace(limits=json.dumps(entries))
    body = msgspec.json.encode(responses.Job(*job_fields(job, now=0)))
    reported = json.loads(body)
    assert (reported["limits"], reported["budgets"], reported["budget_roots"]) == (entries[:1], ["team"], ["0193"])
    came = job_of(msgspec.json.decode(body, type=responses.Job))
    assert shares_of(came.limits) == shares_of(job.limits)
    only = json.loads(
        msgspec.json.encode(responses.Job(*job_fields(job._replace(limits=json.dumps(entries[1:])), now=0)))
    )
    assert (only["limits"], only["budgets"], only["budget_roots"]) == (None, ["team"], ["0193"])


def test_texts_of_a_job_stay_byte_for_byte() -> None:
    job = different_everywhere()
    reported = msgspec.json.encode(responses.Job(*job_fields(job, now=0))).decode()
    for name in TEXTS:
        assert f'"{name}":{getattr(job, name)}' in reported


def test_a_listed_job_has_the_same_members_without_the_large_ones() -> None:
    job = different_everywhere()
    whole = msgspec.json.encode(job_to_dict(job, now=0))
    listed = msgspec.json.encode(responses.ListedJob(*job_fields(job, now=0, listed=True)))
    expected = {name: value for name, value in json.loads(whole).items() if name not in UNLISTED}
    assert json.loads(listed) == expected
    assert {"payload", "checkpoint", "result", "error", "awaiting"} == UNLISTED
    assert msgspec.json.encode(listed_job_to_dict(job, now=0)) == listed


@pytest.mark.parametrize("bare", [False, True])
def test_a_job_survives_encoding_and_decoding(bare: bool) -> None:
    job = different_everywhere()
    if bare:
        empty: dict[str, Any] = {name: None for name, field in FIELDS.items() if field.nullable and name != "payload"}
        job = job._replace(**empty, payload="null", tags=[], requires=[], awaiting=[], status=Status.QUEUED, fence=0)
    body = msgspec.json.encode(responses.Job(*job_fields(job, now=0)))
    lists: dict[str, Any] = {
        name: tuple(getattr(job, name)) for name, field in FIELDS.items() if field.kind is Kind.NAMES
    }
    assert job_of(msgspec.json.decode(body, type=responses.Job)) == job._replace(**lists)


def test_a_null_checkpoint_is_a_value_if_one_was_saved() -> None:
    job = different_everywhere()._replace(checkpoint="null")
    body = msgspec.json.encode(responses.Job(*job_fields(job, now=0)))
    assert job_of(msgspec.json.decode(body, type=responses.Job)).checkpoint == "null"
