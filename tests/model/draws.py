"""What hypothesis draws for the state machine: jobs, asks, and what workers and operators say."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Final, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import Bundle

from interlock.domain.decide import Cancel, Expire, PassDeadline, Revoke
from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import Backoff
from tests.model.words import (
    Held,
    beat,
    beat_with,
    built,
    cancel_ack,
    checkpoint,
    complete,
    fail,
    optional,
    release,
    subset,
)
from tests.support.stores import SECOND, START

TYPES: Final = ("mail", "pay", "scan")
WORKERS: Final = ("w1", "w2")
CAPABILITIES: Final = ("gpu", "net")
REPOSITORIES: Final = ("org/a", "org/b")
AFFINITIES: Final = ("k1", "k2")
UNKNOWN: Final = "ffffffff-0000-7000-8000-000000000000"
FAR: Final = 40 * 86_400.0


class Draft(NamedTuple):
    """A job to be enqueued; times are relative to now, the parent is a job that exists, or not."""

    base: NewJob
    run_in: float | None
    deadline_in: float | None
    parent: str | None


jobs: Bundle[str] = Bundle("jobs")
grants: Bundle[Held] = Bundle("grants")

any_job = st.one_of(jobs, jobs, jobs, st.just(UNKNOWN))
# No jitter here: what a test draws must not depend on chance. Its bounds are tested in test_jitter.
backoffs = st.sampled_from(
    (Backoff("fixed", 4.0), Backoff("fixed", 0.0), Backoff("linear", 3.0), Backoff("exponential", 2.0, 5.0, 3.0))
).map(Backoff.to_text)
plain_jobs = {
    "type": st.sampled_from(TYPES), "delay_seconds": optional(None, None, 0.0, 3.0), "backoff": backoffs,
}  # fmt: skip
rich_jobs = {
    **plain_jobs,
    "payload": st.sampled_from(("{}", '{"n": 1.50}', '"\\u0000"', "[1,  2]")),
    "priority": st.sampled_from((0, 0, 0, -1, 7)),
    "timeout_seconds": optional(None, 5.0, 30.0),
    "max_attempts": st.integers(1, 3),
    "expiry_delay_seconds": optional(None, 0.0, 7.5),
    "tags": subset(("x", "y")),
    "affinity_key": optional(None, *AFFINITIES),
    "repository": optional(None, *REPOSITORIES),
    "requires": st.one_of(st.just(()), subset(CAPABILITIES)),
    "idempotency_key": optional(None, "key 1", "key 2"),
    "body_sha256": st.sampled_from((sha256(b"1").digest(), sha256(b"2").digest())),
    "created_by": st.sampled_from(("user:ann", "token:t1")),
}
drafts = st.builds(
    Draft,
    base=st.one_of(built(NewJob, rich_jobs, id=""), built(NewJob, plain_jobs, id="")),
    run_in=optional(None, None, -60.0, 4.0, 200.0),
    deadline_in=optional(None, None, 2.0, 20.0),
    parent=st.one_of(st.none(), st.none(), st.none(), any_job),
)
everything = {
    "repositories": st.none(), "capabilities": st.just(frozenset(CAPABILITIES)), "affinity_keys": st.none(),
}  # fmt: skip
some_things = {
    "repositories": st.one_of(st.none(), subset(REPOSITORIES).map(frozenset)),
    "capabilities": subset(CAPABILITIES).map(frozenset),
    "affinity_keys": st.one_of(st.none(), subset(AFFINITIES).map(frozenset)),
}
terms: dict[str, st.SearchStrategy[Any]] = {
    "worker": st.sampled_from(WORKERS),
    "types": st.one_of(st.none(), st.none(), subset(TYPES).map(frozenset)),
    "limit": st.sampled_from((1, 1, 2, 3, 100)),
    "lease_seconds": st.sampled_from((1.0, 10.0, 60.0)),
    "claim_id": optional(None, None, "c1", "c2"),
}
asks = st.one_of(built(ClaimAsk, {**terms, **everything}), built(ClaimAsk, {**terms, **some_things}))

# Mostly what a worker remembers; sometimes it is confused about who it is, which grant it has, or which job.
remembered = st.one_of(
    *[grants] * 6,
    grants.map(lambda held: held._replace(fence=held.fence - 1)),
    grants.map(lambda held: held._replace(fence=held.fence + 1)),
    grants.map(lambda held: held._replace(worker="w1" if held.worker == "w2" else "w2")),
    grants.map(lambda held: held._replace(id=UNKNOWN)),
)
errors = st.sampled_from(('{"message":"no","kind":"Boom"}', '{"message":"no", "kind":"Boom", "details":{"a":[1.0]}}'))
reasons = optional("because", "für später")
completes = st.builds(
    complete, remembered, optional('{"ok":true}', "7"), optional("done"), optional('{"tokens":5}'), st.booleans()
)
retries = st.sampled_from((True, True, True, False))
fails = st.builds(fail, remembered, errors, retries, optional(None, None, 0.0, 12.5), st.booleans())
times = optional(None, None, START, START + 200 * SECOND)
some_jobs = st.one_of(st.lists(any_job, max_size=0), st.lists(any_job, max_size=3))
releases = st.builds(release, remembered, reasons, optional(None, None, 0.0, 6.0), times, some_jobs)
acks = st.builds(cancel_ack, remembered)
actors = st.sampled_from(("user:ann", "user:bob"))
forces = st.sampled_from((False, False, True))
cancels = built(Cancel, {"id": any_job, "actor": actors, "reason": reasons, "force": forces})
revokes = built(Revoke, {"id": any_job, "actor": actors, "reason": reasons})
clockwork = st.one_of(any_job.map(Expire), any_job.map(PassDeadline))
finishes = st.one_of(completes, fails, fails, releases, acks)
checkpoints = st.builds(checkpoint, remembered, st.integers(0, 3), st.sampled_from(("1", '{"at": 2}')), st.booleans())
beats = st.one_of(st.builds(beat, remembered, optional(2.0, 90.0)), st.builds(beat_with, checkpoints, optional(2.0)))
