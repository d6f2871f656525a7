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
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from interlock.domain.decide import Command, CompleteJob, EnforceDeadline, ExpireLease, ReleaseJob
from interlock.domain.job import Enqueued, Filter, Job, NewJob, Rejected
from interlock.domain.lifecycle import Location, Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent, Minute, QueueStats
from interlock.domain.retry import Backoff
from interlock.storage.contract import Store
from interlock.storage.history_chain import head
from tests.model.rig import FAST, Rig, examples, open_rig
from tests.model.words import (
    LeaseRef,
    Pick,
    PlannedCall,
    acknowledge,
    built,
    cancel,
    cancel_ack,
    checkpoint,
    complete,
    expire,
    fail,
    heartbeat,
    heartbeat_and_save,
    optional,
    pass_deadline,
    picks,
    planned_call,
    release,
    revoke,
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

urls = st.sampled_from(("https://example.test/hook", "https://example.test:8443/a?b=c"))
leases = picks("grant")
jobs = picks("job")


# Few, so that their jobs meet; the unusual names are agents that are not registered.
LINES: Final = (("plain", "back\\slash"), ('q"uo,te{}', "NULL"))
agents = st.one_of(st.sampled_from(LINES), st.sampled_from(LINES), st.tuples(words, words))


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    facts = draw(
        st.fixed_dictionaries(
            {"type": words, "payload": json_texts, "created_by": words},
            optional={
                "priority": st.integers(-1000, 1000), "timeout_seconds": lasting, "max_attempts": st.integers(1, 3),
                "expiry_delay_seconds": seconds, "headers": json_texts, "traceparent": words, "tags": some_words,
                "affinity_key": st.sampled_from(names),
                "repository": st.sampled_from(names), "requires": subset(names), "webhook": urls, "requested_by": words,
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
    if draw(st.booleans()):
        facts["agent_kind"], facts["agent_id"] = draw(agents)
    kind = draw(st.sampled_from(("fixed", "linear", "exponential")))
    facts["backoff"] = Backoff(kind, draw(st.floats(0, 100)), draw(st.floats(0, 300)), draw(st.floats(1, 10))).to_text()
    return facts


reasons = st.one_of(st.none(), words)
odd = st.booleans()
finishes = st.one_of(
    planned_call(complete, leases, st.one_of(st.none(), json_texts), reasons, optional('{"tokens":1}'), odd),
    planned_call(fail, leases, errors, st.booleans(), st.one_of(st.none(), seconds), odd),
    planned_call(release, leases, reasons, st.one_of(st.none(), seconds), optional(START, START + 7)),
    planned_call(cancel_ack, leases),
)
orders = st.one_of(
    finishes,
    finishes,
    finishes,
    planned_call(cancel, jobs, words, reasons, st.booleans()),
    planned_call(revoke, jobs, words, reasons),
    planned_call(acknowledge, jobs, words, reasons),
    st.one_of(planned_call(expire, jobs), planned_call(pass_deadline, jobs)),
)
checkpoints = planned_call(checkpoint, leases, st.integers(0, 3), json_texts, odd)
heartbeats = st.one_of(
    planned_call(heartbeat, leases, st.one_of(st.none(), lasting)),
    planned_call(heartbeat_and_save, leases, st.one_of(st.none(), lasting), st.integers(0, 3), json_texts, odd),
)
some_names = subset(names).map(frozenset)
asks = built(
    ClaimFilter,
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


GREEDY: Final = ClaimFilter("plain", capabilities=frozenset(names), affinity_keys=None, limit=100, lease_seconds=30.0)
UNKNOWN_LEASE: Final = LeaseRef("ffffffff-0000-7000-8000-000000000000", 1, "plain")


class StorePair(RuleBasedStateMachine):
    """Two stores, one script."""

    def __init__(self, left: Rig, right: Rig, tenant: str) -> None:
        super().__init__()
        self.left, self.right, self.tenant = left, right, tenant
        self.clock = left.clock
        self.clock.now = START
        self.ids: list[str] = []
        self.parents: dict[str, str] = {}
        self.leases: list[LeaseRef] = []

    def both(self, call: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
        answer = self.left.run(call(self.left.store))
        other = self.right.run(call(self.right.store))
        assert same(answer) == same(other)
        for each in answer if isinstance(answer, list) else ():
            self.left.seen[each.error.code if isinstance(each, Rejected) else type(each).__name__] += 1
        return answer

    def planned_call(self, about: PlannedCall) -> Any:
        """The call, on an existing job; on an unknown one if there is none."""
        number = about.pick.number
        if about.of_a_lease:
            return about.make(self.leases[number % len(self.leases)] if self.leases else UNKNOWN_LEASE, *about.rest)
        return about.make(self.ids[number % len(self.ids)] if self.ids else UNKNOWN_LEASE.id, *about.rest)

    @initialize(batch=st.lists(new_jobs(), min_size=3, max_size=4))
    def begin(self, batch: list[dict[str, Any]]) -> None:
        self.add([{**facts, "run_at": None, "delay_seconds": None} for facts in batch], False)
        self.take(GREEDY)

    @rule(batch=st.lists(new_jobs(), min_size=1, max_size=3), whole=st.booleans())
    def enqueue(self, batch: list[dict[str, Any]], whole: bool) -> None:
        self.add(batch, whole)

    @rule(parent=jobs, batch=st.lists(new_jobs(), min_size=1, max_size=2), whole=st.booleans())
    def enqueue_children(self, parent: Pick, batch: list[dict[str, Any]], whole: bool) -> None:
        id = self.ids[parent.number % len(self.ids)] if self.ids else UNKNOWN_LEASE.id
        self.add([{**facts, "parent_id": id} for facts in batch], whole)

    def add(self, batch: list[dict[str, Any]], whole: bool) -> None:
        number = next(_ids)
        new = [
            NewJob(f"{number * 2_654_435_761 % (1 << 32):08x}-{i:04x}-7000-8000-000000000000", **facts)
            for i, facts in enumerate(batch)
        ]

        async def enqueue(store: Store) -> list[Enqueued | Rejected | None]:
            """The answers; of a batch that was refused as a whole, only the refusals."""
            answers = await store.enqueue(self.tenant, new, whole=whole)
            if whole and any(isinstance(answer, Rejected) for answer in answers):
                return [answer if isinstance(answer, Rejected) else None for answer in answers]
            return list(answers)

        answers = self.both(enqueue)
        added = [
            job
            for job, answer in zip(new, answers, strict=True)
            if isinstance(answer, Enqueued) and not answer.replayed
        ]
        self.ids += [job.id for job in added]
        self.parents |= {job.id: job.parent_id for job in added if job.parent_id is not None}

    @rule(ask=asks)
    def claim(self, ask: ClaimFilter) -> None:
        self.take(ask)

    @rule()
    def claim_all(self) -> None:
        self.take(GREEDY)

    def take(self, ask: ClaimFilter) -> list[LeaseRef]:
        leased = self.both(lambda store: store.claim(self.tenant, ask))
        lease_ref = [LeaseRef(job.id, job.fence, ask.worker) for job in leased]
        self.leases += lease_ref
        return lease_ref

    @rule(batch=st.lists(orders, min_size=1, max_size=4))
    def carry_out(self, batch: list[PlannedCall]) -> None:
        self.finish([self.planned_call(each) for each in batch])

    @rule(lease=leases, stranger=jobs)
    def wait_for_children(self, lease: Pick, stranger: Pick) -> None:
        lease_ref = self.leases[lease.number % len(self.leases)] if self.leases else UNKNOWN_LEASE
        chosen = [child for child, parent in self.parents.items() if parent == lease_ref.id]
        if stranger.number % 4 == 0 and self.ids:
            chosen.append(self.ids[stranger.number % len(self.ids)])
        self.finish([ReleaseJob(lease_ref.id, lease_ref.fence, lease_ref.worker, children=tuple(chosen))])

    def finish(self, batch: Sequence[Command]) -> None:
        self.both(lambda store: store.carry_out(self.tenant, batch))

    @rule(batch=st.lists(heartbeats, min_size=1, max_size=3))
    def heartbeat(self, batch: list[PlannedCall]) -> None:
        given = [self.planned_call(each) for each in batch]
        self.both(lambda store: store.heartbeat(self.tenant, given))

    @rule(batch=st.lists(checkpoints, min_size=1, max_size=3))
    def checkpoint(self, batch: list[PlannedCall]) -> None:
        given = [self.planned_call(each) for each in batch]
        self.both(lambda store: store.checkpoint(self.tenant, given))

    @rule(micros=st.one_of(st.integers(0, 10**9), st.sampled_from((1, SECOND))))
    def time_passes(self, micros: int) -> None:
        self.clock.now += micros

    @rule(type=words, actor=st.one_of(st.none(), words))
    def pause(self, type: str, actor: str | None) -> None:
        self.both(lambda store: store.registry.pause(self.tenant, type, actor=actor, reason=actor))

    @rule(name=st.sampled_from(LINES), most=optional(1, 1, 2), strict=st.booleans())
    def limit(self, name: tuple[str, str], most: int | None, strict: bool) -> None:
        self.both(lambda store: store.registry.set_agent(self.tenant, Agent(*name, most, strict)))

    @rule(
        name=st.sampled_from(LINES), starts=st.lists(st.sampled_from((None, -SECOND, SECOND)), min_size=2, max_size=4)
    )
    def line_up(self, name: tuple[str, str], starts: list[int | None]) -> None:
        """Several jobs of one agent: due now, longer than others, and soon."""
        facts = {"type": "line", "agent_kind": name[0], "agent_id": name[1], "backoff": Backoff("fixed").to_text()}
        self.add([{**facts, "run_at": None if at is None else self.clock.now + at} for at in starts], False)

    @rule()
    def count(self) -> None:
        async def by_type(store: Store) -> list[list[Any]]:
            """Sums of fifths rounded; a type that was only ever named in a refused enqueue may be listed or not."""
            reported = sorted(await store.registry.stats(self.tenant), key=lambda queue: queue.type)
            return [
                [round(fact, 6) if isinstance(fact, float) else fact for fact in queue]
                for queue in reported
                if queue != QueueStats(queue.type)
            ]

        async def by_minute(store: Store) -> list[Minute]:
            return sorted(await store.registry.minutes(self.tenant))

        self.both(by_type)
        self.both(by_minute)

    @rule()
    def sweep(self) -> None:
        for look, make in ((Store.due_leases, ExpireLease), (Store.due_deadlines, EnforceDeadline)):

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

    async def locations(self, store: Store) -> list[Location | None]:
        return [job and job.location(self.clock.now) for job in await store.get(self.tenant, self.ids)]

    def teardown(self) -> None:
        self.count()
        self.both(lambda store: store.get(self.tenant, self.ids))
        self.both(self.locations)
        self.both(lambda store: store.registry.agents(self.tenant, ("", ""), 100))
        self.both(lambda store: store.find(self.tenant, Filter(limit=1000)))
        ends = []
        for id in sorted(self.ids):
            rows = self.both(lambda store, id=id: store.history(self.tenant, id))  # type: ignore[misc]
            ends.append((self.tenant, id, rows[-1].hash))
            self.left.seen.update(f"{row.from_status} → {row.to_status} by {row.verb}" for row in rows)
        verdict = self.both(lambda store: store.audit.verify(self.tenant))
        assert verdict.first_bad is None
        assert verdict.jobs == len(self.ids)
        self.end = head(ends)


def same(answer: Any) -> Any:
    """An answer without what engines may choose: the numbers of arrival, and the kind of sequence."""
    if isinstance(answer, Job):
        facts = answer._asdict()
        del facts["seq"], facts["blocked"]  # which the location shows
        return {name: same(value) for name, value in facts.items()}
    if isinstance(answer, Enqueued):
        return (answer.id, answer.replayed)
    if isinstance(answer, Rejected):
        return (answer.error.code, str(answer.error), vars(answer.error))
    if isinstance(answer, list | tuple):
        return [same(each) for each in answer]
    return bytes(answer) if isinstance(answer, bytes | memoryview) else answer


@pytest.fixture
def rigs(postgres: Postgres) -> Iterator[tuple[Rig, Rig]]:
    clock = ManualClock()
    with (
        asyncio.Runner() as runner,
        open_rig("sqlite", postgres, runner, clock) as left,
        open_rig("postgres", postgres, runner, clock) as right,
    ):
        yield left, right


def test_both_engines_give_the_same_results_for_the_same_script(rigs: tuple[Rig, Rig]) -> None:
    left, right = rigs
    run_state_machine_as_test(lambda: StorePair(left, right, left.new_tenant() + " ü"), settings=examples(150, 15))  # type: ignore[arg-type]
    print("\n".join(f"{count:6} {what}" for what, count in sorted(left.seen.items())))


def test_both_engines_have_the_same_head_after_the_same_script(rigs: tuple[Rig, Rig]) -> None:
    """One long life over several tenants, so that `head` runs over pages of them."""
    left, right = rigs
    dice = random.Random(1)
    for tenant in ("b", "a", "ü"):
        pair = StorePair(left, right, tenant)
        lease_ref: list[LeaseRef] = []
        for _ in range(10 if FAST else 40):
            pair.add([{"type": dice.choice(names), "payload": str(dice.random())} for _ in range(5)], False)
            lease_ref += pair.take(ClaimFilter(dice.choice(names), limit=4))
            dice.shuffle(lease_ref)
            done = [lease_ref.pop() for _ in range(len(lease_ref) // 2)]
            pair.finish([CompleteJob(lease.id, lease.fence, lease.worker) for lease in done])
            pair.clock.advance(dice.random())
        pair.teardown()
    heads = [rig.run(rig.store.audit.head()) for rig in rigs]
    assert heads[0] == heads[1]
    assert left.run(left.store.audit.verify()) == right.run(right.store.audit.verify())
