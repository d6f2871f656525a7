"""A job in an answer: every field under its own name, and none that is not documented."""

from __future__ import annotations

import json

import msgspec

from interlock import wire
from interlock.api import responses
from interlock.domain.job import Job
from interlock.domain.lifecycle import Status
from interlock.wire import encode

NOON = 1_763_294_400_000_000
TIMES = (
    "run_at", "deadline", "cancel_requested_at", "created_at", "updated_at", "started_at", "run_started_at",
    "heartbeat_at", "finished_at",
)  # fmt: skip
TEXTS = ("payload", "headers", "backoff", "checkpoint", "usage", "result", "error")
FOLDED = {"agent_kind", "agent_id", "worker", "fence", "lease_expires_at", "blocked"}


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
        "blocked": False, "webhook": "https://example.com/hook",
    }  # fmt: skip
    return Job._make((values | fixed)[name] for name in Job._fields)


def test_every_field_of_a_job_is_shown_under_its_name() -> None:
    job = different_everywhere()
    reported = json.loads(msgspec.json.encode(encode.JobBody(*encode.job_fields(job, now=0))))
    for name, value in job._asdict().items():
        if name in FOLDED:
            assert name not in reported
        elif name in TIMES:
            assert reported[name] == wire.when(value), name
        elif name in TEXTS:
            assert reported[name] == json.loads(value), name
        else:
            assert reported[name] == value, name
    assert reported["agent"] == {"kind": job.agent_kind, "id": job.agent_id}
    assert reported["lease"] == {"worker": job.worker, "fence": job.fence, "expires_at": wire.when(NOON + len(TIMES))}
    assert reported["retry_count"] == job.attempt - 1
    assert reported["location"] == "in_progress"
    assert json.loads(msgspec.json.encode(encode.job_to_dict(job, now=0))) == reported


def test_texts_of_a_job_stay_byte_for_byte() -> None:
    job = different_everywhere()
    reported = msgspec.json.encode(encode.JobBody(*encode.job_fields(job, now=0))).decode()
    for name in TEXTS:
        assert f'"{name}":{getattr(job, name)}' in reported


def test_what_is_shown_of_jobs_is_what_is_documented() -> None:
    def same(given: type[msgspec.Struct], documented: type[msgspec.Struct], *left_out: str) -> bool:
        return {*given.__struct_fields__} - {*left_out} == {*documented.__struct_fields__}

    assert same(encode.JobBody, responses.Job)
    assert same(encode.JobBody, responses.ListedJob, *encode.NOT_LISTED)
    assert same(encode.EnqueuedJobBody, responses.EnqueuedJob)
    assert same(encode.LeasedJobBody, responses.ClaimedJob)
