"""What Hypothesis draws for the state machine: jobs, claims, and calls of workers and operators."""

from __future__ import annotations

from hashlib import sha256
from typing import Final, NamedTuple

from hypothesis import strategies as st

from interlock.domain.approval import Decision, OnDeny
from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import Event, Level
from interlock.domain.retry import Backoff
from tests.model import words
from tests.model.concurrency import Limit
from tests.model.words import Draw, Pick, built, optional, picks, planned_call, subset
from tests.support.stores import SECOND, START

TYPES: Final = ("mail", "pay", "scan")
WORKERS: Final = ("w1", "w2")
CAPABILITIES: Final = ("gpu", "net")
REPOSITORIES: Final = ("org/a", "org/b")
AFFINITIES: Final = ("k1", "k2")
AGENTS: Final = ("a", "b")
VOTERS: Final = ("user:ann", "user:bob")

# Mostly a current lease of the worker; sometimes one that has ended, or a wrong fence, worker or job.
LEASE_KINDS: Final = (
    "live",
    "live",
    "live",
    "live",
    "live",
    "over",
    "over",
    "older fence",
    "newer fence",
    "other worker",
    "unknown",
)
leases = picks(*LEASE_KINDS)
any_job = picks("running", "waiting", "asking", "any", "unknown")
failed_job = picks("failed", "failed", "failed", "any", "unknown")
waiting_job = picks("waiting", "waiting", "waiting", "any", "unknown")


class Draft(NamedTuple):
    """A job to be enqueued; times are relative to now, and the parent is still to be found."""

    base: NewJob
    run_in: float | None
    deadline_in: float | None
    parent: Pick | None
    agent: str | None = None


# No jitter here: what is drawn later must not depend on chance. Its bounds are tested in test_jitter.
backoffs = st.sampled_from(
    (Backoff("fixed", 4.0), Backoff("fixed", 0.0), Backoff("linear", 3.0), Backoff("exponential", 2.0, 5.0, 3.0))
).map(Backoff.to_text)
plain_jobs: dict[str, Draw] = {
    "type": st.sampled_from(TYPES),
    "delay_seconds": optional(None, None, 0.0, 3.0),
    "max_attempts": st.integers(1, 4),
    "backoff": backoffs,
}
rich_jobs: dict[str, Draw] = {
    **plain_jobs,
    "payload": st.sampled_from(("{}", '{"n": 1.50}', '"\\u0000"', "[1,  2]")),
    "priority": st.sampled_from((0, 0, 0, -1, 7)),
    "timeout_seconds": optional(None, 5.0, 30.0),
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
    deadline_in=optional(None, None, None, 2.0, 20.0),
    parent=st.one_of(st.none(), st.none(), st.none(), picks("running", "any", "any", "unknown")),
    agent=optional(*AGENTS, *AGENTS),
)
limits = st.builds(Limit, optional(1, 1, 2), st.booleans())

some_names = {
    "repositories": st.one_of(st.none(), subset(REPOSITORIES).map(frozenset)),
    "capabilities": subset(CAPABILITIES).map(frozenset),
    "affinity_keys": st.one_of(st.none(), subset(AFFINITIES).map(frozenset)),
}
all_names = {"capabilities": st.just(frozenset(CAPABILITIES)), "affinity_keys": st.none()}
terms: dict[str, Draw] = {
    "worker": st.sampled_from(WORKERS),
    "types": st.one_of(st.none(), st.none(), subset(TYPES).map(frozenset)),
    "limit": st.sampled_from((1, 1, 2, 3, 100)),
    "lease_seconds": st.sampled_from((1.0, 10.0, 60.0)),
    "claim_id": optional(None, None, "c1", "c2"),
}
asks = st.one_of(built(ClaimFilter, {**terms, **all_names}), built(ClaimFilter, {**terms, **some_names}))

errors = st.sampled_from(('{"message":"no","kind":"Boom"}', '{"message":"no", "kind":"Boom", "details":{"a":[1.0]}}'))
reasons = optional("because", "für später")
actors = st.sampled_from(("user:ann", "user:bob"))
retryable = st.sampled_from((True, True, True, False))
times = optional(None, None, START, START + 200 * SECOND)
results = optional('{"ok":true}', "7")

completes = planned_call(words.complete, leases, results, optional("done"), optional('{"tokens":5}'), st.booleans())
fails = planned_call(words.fail, leases, errors, retryable, optional(None, None, 0.0, 12.5), st.booleans())
releases = planned_call(words.release, leases, reasons, optional(None, None, 0.0, 6.0), times)
acks = planned_call(words.cancel_ack, leases)
cancels = planned_call(words.cancel, any_job, actors, reasons, st.sampled_from((False, False, True)))
revokes = planned_call(words.revoke, any_job, actors, reasons)
acknowledgements = planned_call(words.acknowledge, failed_job, actors, reasons)
clockwork = st.one_of(planned_call(words.expire, any_job), planned_call(words.pass_deadline, any_job))
stops = st.one_of(acks, fails, releases, completes, revokes, cancels)
orders = st.one_of(completes, fails, releases, acks, cancels, revokes, acknowledgements, clockwork)

questions: dict[str, Draw] = {
    "required": st.sampled_from((1, 1, 2)),
    "on_deny": st.sampled_from(OnDeny),
    "expires_in_seconds": st.sampled_from((5.0, 3600.0)),
}
asked = st.fixed_dictionaries(questions)
commands = st.tuples(st.integers(0, 3), st.sampled_from(VOTERS), st.sampled_from(Decision), reasons)
edits = st.fixed_dictionaries(
    {
        "priority": optional(None, 0, 7),
        "run_in": optional(None, -5.0, 0.0, 4.0),
        "max_attempts": optional(None, 1, 5),
    }
)

saved = (st.integers(0, 3), st.sampled_from(("1", '{"at": 2}')), st.booleans())
checkpoints = planned_call(words.checkpoint, leases, *saved)
# Few IDs, so that many events are repeated.
events = st.lists(
    st.builds(
        Event,
        st.integers(1, 12).map("00000000-0000-7000-8000-{:012x}".format),
        st.sampled_from(Level),
        st.sampled_from(("half way", "für später")),
        optional('{"n": 1.50}'),
        st.booleans(),
        optional(0, START, START + 3 * SECOND, START + 200 * SECOND),
    ),
    min_size=1,
    max_size=3,
).map(tuple)
reports = planned_call(words.append_events, leases, events)
steps = planned_call(
    words.save_step,
    leases,
    st.sampled_from(("search", "write")),
    st.integers(0, 1),
    st.sampled_from(("1", '{"at": 2}')),
    optional("app.search"),
    st.booleans(),
)
heartbeats = st.one_of(
    planned_call(words.heartbeat, leases, optional(2.0, 90.0)),
    planned_call(words.heartbeat_and_save, leases, optional(2.0), *saved),
    planned_call(words.heartbeat_and_append, leases, optional(2.0), events),
)
