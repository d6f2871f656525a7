"""The same script on both engines, in lock-step: every answer, every record and every byte of history is the same."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine, Iterator, Sequence
from hashlib import sha256
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    multiple,
    rule,
    run_state_machine_as_test,
)

from interlock.domain.decide import Cancel, Complete, Expire, Order, PassDeadline, Revoke
from interlock.domain.job import Checkpoint, Enqueued, Filter, Job, NewJob, Refused
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import Backoff
from interlock.storage.chains import head
from interlock.storage.contract import Store
from tests.model.rig import FAST, Rig, examples, open_rig
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
from tests.support.postgres import Postgres
from tests.support.stores import SECOND, START, ManualClock

_ids = itertools.count(1)

# Text as people and machines write it: quotes, braces and backslashes, which mean something to arrays and to JSON, among all else.
text = st.text(
    st.one_of(st.sampled_from("\"'{}[],\\%_/;: \n\tNUL"), st.characters(codec="utf-8", exclude_characters="\0")),
    min_size=1,
    max_size=12,
)
names: Final = ("plain", 'q"uo,te{}', "back\\slash", "ünïcödé 漢字", "NULL", "a'b")
words = st.one_of(st.sampled_from(names), text)
some_words = st.lists(words, unique=True, max_size=3).map(lambda chosen: tuple(sorted(chosen)))
seconds = st.one_of(
    st.sampled_from((0.0, 1.0, 2.5)), st.floats(0, 1000), st.integers(0, 10**9).map(lambda us: us / 1e6)
)
lasting = seconds.map(lambda value: value + 0.001)
json_texts = st.sampled_from(
    (
        "{}",
        "null",
        '"\\u0000"',
        '"\\ud83d\\ude00"',
        "[1.0, 1e3,-0.0]",
        '{"b":1, "a":{"c":"ü"}}',
        "12345678901234567890e-2",
    )
)
errors = st.sampled_from(('{"message":"ü\\n","kind":"X"}', '{"message":"","kind":null,"details":[ 1.0 ]}'))
bodies = st.sampled_from((b"1", b"2")).map(lambda body: sha256(body).digest())

jobs: Bundle[str] = Bundle("jobs")
grants: Bundle[Held] = Bundle("grants")


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    facts = draw(
        st.fixed_dictionaries(
            {"type": words, "payload": json_texts, "created_by": words},
            optional={
                "priority": st.integers(-1000, 1000), "timeout_seconds": lasting, "max_attempts": st.integers(1, 3),
                "expiry_delay_seconds": seconds, "headers": json_texts, "traceparent": words, "tags": some_words,
                "agent_kind": words, "agent_id": words, "affinity_key": st.sampled_from(names),
                "repository": st.sampled_from(names), "requires": subset(names), "webhook": words, "requested_by": words,
            },
        )
    )  # fmt: skip
    when = draw(st.sampled_from(("now", "later", "delayed")))
    if when == "delayed":
        facts["delay_seconds"] = draw(seconds)
    elif when == "later":
        facts["run_at"] = START + draw(st.integers(-(10**9), 10**9))
    if draw(st.booleans()):
        facts["deadline"] = START + draw(st.integers(0, 10**9))
    if draw(st.booleans()):
        facts |= {"idempotency_key": draw(st.sampled_from(names)), "body_sha256": draw(bodies)}
    kind = draw(st.sampled_from(("fixed", "linear", "exponential")))
    facts["backoff"] = Backoff(kind, draw(st.floats(0, 100)), draw(st.floats(0, 300)), draw(st.floats(1, 10))).to_text()
    return facts


finishes = st.one_of(
    st.builds(
        complete,
        grants,
        st.one_of(st.none(), json_texts),
        st.one_of(st.none(), words),
        optional('{"tokens":1}'),
        st.booleans(),
    ),
    st.builds(fail, grants, errors, st.booleans(), st.one_of(st.none(), seconds), st.booleans()),
    st.builds(
        release,
        grants,
        st.one_of(st.none(), words),
        st.one_of(st.none(), seconds),
        optional(START, START + 7),
        st.lists(jobs, max_size=2),
    ),
    st.builds(cancel_ack, grants),
)
reasons = st.one_of(st.none(), words)
orders = st.one_of(
    finishes,
    finishes,
    built(Cancel, {"id": jobs, "actor": words, "reason": reasons, "force": st.booleans()}),
    built(Revoke, {"id": jobs, "actor": words, "reason": reasons}),
    jobs.map(Expire),
    jobs.map(PassDeadline),
)
checkpoints = st.builds(checkpoint, grants, st.integers(0, 3), json_texts, st.booleans())
some_names = subset(names).map(frozenset)
asks = built(
    ClaimAsk,
    {
        "worker": st.sampled_from(names),
        "repositories": st.one_of(st.none(), some_names),
        "capabilities": st.one_of(st.just(frozenset(names)), some_names),
        "affinity_keys": st.one_of(st.none(), some_names),
        "limit": st.integers(1, 5),
        "lease_seconds": lasting,
        "claim_id": optional(None, None, *names),
    },
)


class Twins(RuleBasedStateMachine):
    """Two stores, one script."""

    def __init__(self, left: Rig, right: Rig, tenant: str) -> None:
        super().__init__()
        self.left, self.right, self.tenant = left, right, tenant
        self.clock = left.clock
        self.clock.now = START
        self.ids: list[str] = []

    def both(self, call: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        answer = self.left.run(call(self.left.store))
        other = self.right.run(call(self.right.store))
        assert same(answer) == same(other)
        return answer

    @rule(target=jobs, batch=st.lists(new_jobs(), min_size=1, max_size=4), whole=st.booleans())
    def enqueue(self, batch: list[dict[str, Any]], whole: bool) -> MultipleResults[str]:
        return self._enqueue(batch, whole)

    @rule(target=jobs, parent=jobs, batch=st.lists(new_jobs(), min_size=1, max_size=2), whole=st.booleans())
    def enqueue_children(self, parent: str, batch: list[dict[str, Any]], whole: bool) -> MultipleResults[str]:
        return self._enqueue([{**facts, "parent_id": parent} for facts in batch], whole)

    def _enqueue(self, batch: list[dict[str, Any]], whole: bool) -> MultipleResults[str]:
        number = next(_ids)
        new = [
            NewJob(f"{number * 2_654_435_761 % (1 << 32):08x}-{i:04x}-7000-8000-000000000000", **facts)
            for i, facts in enumerate(batch)
        ]

        async def enqueue(store: Store) -> list[Enqueued | Refused | None]:
            """The answers; of a batch that was refused as a whole, only the refusals."""
            answers = await store.enqueue(self.tenant, new, whole=whole)
            if whole and any(isinstance(answer, Refused) for answer in answers):
                return [answer if isinstance(answer, Refused) else None for answer in answers]
            return list(answers)

        answers = self.both(enqueue)
        added = [answer.id for answer in answers if isinstance(answer, Enqueued) and not answer.replayed]
        self.ids += added
        return multiple(*added)

    @rule(target=grants, ask=asks)
    def claim(self, ask: ClaimAsk) -> MultipleResults[Held]:
        return multiple(*self.take(ask))

    def take(self, ask: ClaimAsk) -> list[Held]:
        granted = self.both(lambda store: store.claim(self.tenant, ask))
        return [Held(job.id, job.fence, ask.worker) for job in granted]

    @rule(batch=st.lists(orders, min_size=1, max_size=4))
    def carry_out(self, batch: list[Order]) -> None:
        self.finish(batch)

    def finish(self, batch: Sequence[Order]) -> None:
        self.both(lambda store: store.carry_out(self.tenant, batch))

    @rule(batch=st.lists(st.tuples(grants, st.one_of(st.none(), lasting)), min_size=1, max_size=3))
    def heartbeat(self, batch: list[tuple[Held, float | None]]) -> None:
        beats = [beat(held, lease) for held, lease in batch]
        self.both(lambda store: store.heartbeat(self.tenant, beats))

    @rule(batch=st.lists(checkpoints, min_size=1, max_size=3), beating=st.booleans())
    def checkpoint(self, batch: list[Checkpoint], beating: bool) -> None:
        if beating:
            self.both(lambda store: store.heartbeat(self.tenant, [beat_with(saved, None) for saved in batch]))
        else:
            self.both(lambda store: store.checkpoint(self.tenant, batch))

    @rule(micros=st.one_of(st.integers(0, 10**9), st.sampled_from((1, SECOND))))
    def time_passes(self, micros: int) -> None:
        self.clock.now += micros

    @rule(type=words, actor=st.one_of(st.none(), words))
    def pause(self, type: str, actor: str | None) -> None:
        self.both(lambda store: store.pause(self.tenant, type, actor=actor, reason=actor))

    @rule()
    def sweep(self) -> None:
        for look, make in ((Store.due_leases, Expire), (Store.due_deadlines, PassDeadline)):

            async def due(store: Store, name: str = look.__name__) -> list[str]:
                return sorted(due.job_id for due in await getattr(store, name)(10_000) if due.tenant == self.tenant)

            found = [make(id) for id in self.both(due)]
            self.both(lambda store, found=found: store.carry_out(self.tenant, found))  # type: ignore[misc]

    @rule(
        statuses=st.lists(st.sampled_from(tuple(Status)), unique=True),
        type=st.one_of(st.none(), st.sampled_from(names)),
        tags=some_words,
        limit=st.integers(1, 20),
    )
    def find(self, statuses: list[Status], type: str | None, tags: tuple[str, ...], limit: int) -> None:
        filter = Filter(tuple(statuses), type, tags=tags, limit=limit)
        self.both(lambda store: store.find(self.tenant, filter))

    def teardown(self) -> None:
        self.both(lambda store: store.get(self.tenant, self.ids))
        self.both(lambda store: store.find(self.tenant, Filter(limit=1000)))
        ends = []
        for id in sorted(self.ids):
            rows = self.both(lambda store, id=id: store.history(self.tenant, id))  # type: ignore[misc]
            ends.append((self.tenant, id, rows[-1].hash))
        verdict = self.both(lambda store: store.verify(self.tenant))
        assert verdict.first_bad is None
        assert verdict.jobs == len(self.ids)
        self.end = head(ends)


def same(answer: Any) -> Any:
    """An answer without what engines may choose: the numbers of arrival, and the kind of sequence."""
    if isinstance(answer, Job):
        facts = answer._asdict()
        del facts["seq"]
        return {name: same(value) for name, value in facts.items()}
    if isinstance(answer, Enqueued):
        return (answer.id, answer.replayed)
    if isinstance(answer, Refused):
        return (answer.error.code, str(answer.error), vars(answer.error))
    if isinstance(answer, list | tuple):
        return [same(each) for each in answer]
    return bytes(answer) if isinstance(answer, bytes | memoryview) else answer


@pytest.fixture
def twins(postgres: Postgres) -> Iterator[tuple[Rig, Rig]]:
    clock = ManualClock()
    with (
        asyncio.Runner() as runner,
        open_rig("sqlite", postgres, runner, clock) as left,
        open_rig("postgres", postgres, runner, clock) as right,
    ):
        yield left, right


def test_both_engines_give_the_same_answers_to_the_same_script(twins: tuple[Rig, Rig]) -> None:
    left, right = twins
    run_state_machine_as_test(lambda: Twins(left, right, left.new_tenant() + " ü"), settings=examples(150, 30))  # type: ignore[arg-type]


def test_both_engines_have_the_same_head_after_the_same_script(twins: tuple[Rig, Rig]) -> None:
    """One long life over several tenants, so that `head` runs over pages of them."""
    left, right = twins
    dice = random.Random(1)
    for tenant in ("b", "a", "ü"):
        twin = Twins(left, right, tenant)
        held: list[Held] = []
        for _ in range(10 if FAST else 40):
            twin._enqueue([{"type": dice.choice(names), "payload": str(dice.random())} for _ in range(5)], False)
            held += twin.take(ClaimAsk(dice.choice(names), limit=4))
            dice.shuffle(held)
            done = [held.pop() for _ in range(len(held) // 2)]
            twin.finish([Complete(grant.id, grant.fence, grant.worker) for grant in done])
            twin.clock.advance(dice.random())
        twin.teardown()
    heads = [rig.run(rig.store.head()) for rig in twins]
    assert heads[0] == heads[1]
    assert left.run(left.store.verify()) == right.run(right.store.verify())
