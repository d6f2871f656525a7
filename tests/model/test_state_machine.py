"""One state machine over both engines: whatever is called in whatever order, the store answers as the model does."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from interlock.domain.decide import Cancel, Complete, Expire, Order, PassDeadline, Release
from interlock.domain.job import Beat, Checkpoint, Enqueued, Filter, Job, NewJob, Receipt, Refused
from interlock.domain.lifecycle import EDGES, Location, Status, Verb
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import Backoff
from tests.model import draws
from tests.model.draws import CAPABILITIES, TYPES, WORKERS, Draft
from tests.model.model import ENDED, SECOND, WAITING, Life, Model, Replay, by_seq, plain, plain_line
from tests.model.rig import FAST, Rig, examples, open_rig
from tests.model.words import Held, Pick, Say, optional, picks, subset
from tests.support.postgres import Postgres
from tests.support.stores import START, ManualClock
from tests.support.truth import check_history

UNKNOWN: Final = "ffffffff-0000-7000-8000-000000000000"
NOBODY: Final = Held(UNKNOWN, 1, "w1")
FAR: Final = 40 * 86_400.0
_ids = itertools.count(1)


class Machine(RuleBasedStateMachine):
    """Every call goes to the store and to the model; answers, and then all jobs, must be equal."""

    def __init__(self, rig: Rig) -> None:
        super().__init__()
        self.rig, self.store, self.clock = rig, rig.store, rig.clock
        self.clock.now = START
        self.tenant = rig.new_tenant()
        self.model = Model(self.tenant)
        self.grants: list[Held] = []
        self.last_orders: list[Order] = []
        self.last_beats: list[Beat] = []
        self.last_checkpoints: list[Checkpoint] = []
        self.step = 0
        self.unseen = False
        self.stepped_back = False

    # Whom and what the words are about.

    def held(self, pick: Pick) -> Held:
        is_over = pick.kind == "over"
        those = [held for held in self.grants if self.model.jobs[held.id].held_by(held.fence, held.worker) != is_over]
        those = those or self.grants
        if pick.kind == "unknown" or not those:
            return NOBODY
        held = those[pick.number % len(those)]
        if pick.kind == "other worker":
            return held._replace(worker="w1" if held.worker == "w2" else "w2")
        return held._replace(fence=held.fence + {"older fence": -1, "newer fence": 1}.get(pick.kind, 0))

    def job(self, pick: Pick) -> str:
        statuses = {"running": (Status.RUNNING,), "waiting": WAITING, "any": tuple(Status), "unknown": ()}[pick.kind]
        those = [life.id for life in by_seq(self.model.jobs.values()) if life.status in statuses]
        return those[pick.number % len(those)] if those else UNKNOWN

    def say(self, words: Say) -> Any:
        return words.make(self.held(words.pick) if words.of_a_grant else self.job(words.pick), *words.rest)

    # Producers.

    @initialize(batch=st.lists(draws.drafts, min_size=2, max_size=3))
    def begin(self, batch: list[Draft]) -> None:
        self.begin_more(batch)

    @rule(batch=st.lists(draws.drafts, min_size=1, max_size=2))
    def begin_more(self, batch: list[Draft]) -> None:
        """Work that is under way, since most rules are about that."""
        now = [draft._replace(run_in=None, base=draft.base._replace(delay_seconds=None)) for draft in batch]
        self._enqueue([self._new_job(draft) for draft in now], False)
        self._claim(greedy("w1"))

    @rule(batch=st.lists(draws.drafts, min_size=1, max_size=3), whole=st.booleans())
    def enqueue(self, batch: list[Draft], whole: bool) -> None:
        self._enqueue([self._new_job(draft) for draft in batch], whole)

    @rule(parent=picks("live"), count=st.integers(1, 2), type=st.sampled_from(TYPES))
    def enqueue_children(self, parent: Pick, count: int, type: str) -> None:
        id = self.held(parent).id
        child = NewJob("", type, timeout_seconds=30.0, backoff=Backoff("fixed").to_text())
        self._enqueue([self._new_job(Draft(child, None, None, None), id) for _ in range(count)], False)

    def _new_job(self, draft: Draft, parent_id: str | None = None) -> NewJob:
        number = next(_ids)
        now = self.clock.now
        run_in = draft.run_in if draft.base.delay_seconds is None else None
        return draft.base._replace(
            id=f"{number * 2_654_435_761 % (1 << 32):08x}-0000-7000-8000-{number:012x}",  # ids are no order
            run_at=None if run_in is None else now + round(run_in * SECOND),
            deadline=None if draft.deadline_in is None else now + round(draft.deadline_in * SECOND),
            parent_id=self.job(draft.parent) if draft.parent is not None else parent_id,
        )

    def _enqueue(self, batch: list[NewJob], whole: bool) -> None:
        answers = self.rig.run(self.store.enqueue(self.tenant, batch, whole=whole))
        expected = self.model.enqueue(batch, self.clock.now, whole=whole)
        self.unseen = True
        assert len(answers) == len(batch)
        refused = [code(answer) if isinstance(answer, Refused) else None for answer in answers]
        assert refused == [answer if isinstance(answer, str) else None for answer in expected]
        self.rig.seen.update(f"enqueue: {each}" for each in refused if each)
        if whole and any(refused):
            return
        for answer, foretold in zip(answers, expected, strict=True):
            if isinstance(foretold, Replay):
                assert answer == Enqueued(foretold.id, self.model.jobs[foretold.id].seq, True)
            elif isinstance(foretold, Life):
                assert isinstance(answer, Enqueued)
                assert (answer.id, answer.replayed) == (foretold.id, False)
                assert answer.seq > max((life.seq for life in self.model.jobs.values()), default=0)
                foretold.seq = answer.seq

    # Workers.

    @rule(ask=draws.asks)
    def claim(self, ask: ClaimAsk) -> None:
        self._claim(ask)

    @rule(worker=st.sampled_from(WORKERS))
    def claim_all(self, worker: str) -> None:
        self._claim(greedy(worker))

    def _claim(self, ask: ClaimAsk) -> list[Held]:
        granted = self.rig.run(self.store.claim(self.tenant, ask))
        expected = self.model.claim(ask, self.clock.now)
        self.unseen = True
        assert [job.id for job in granted] == [life.id for life in expected]
        self._compare(granted, expected)
        held = [Held(job.id, job.fence, ask.worker) for job in granted]
        self.grants += [each for each in held if each not in self.grants]
        return held

    @rule(lost=picks("live"))
    def crash(self, lost: Pick) -> None:
        """The worker is gone and forgets what it had; the store is not told."""
        self.grants = [held for held in self.grants if held != self.held(lost)]

    @rule(batch=st.lists(draws.beats, min_size=1, max_size=3))
    def heartbeat(self, batch: list[Say]) -> None:
        self._heartbeat([self.say(words) for words in batch])

    def _heartbeat(self, beats: list[Beat]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.heartbeat(self.tenant, beats))]
        assert answers == self.model.heartbeat(beats, self.clock.now)
        self.rig.seen.update(f"heartbeat: {answer}" for answer in answers if isinstance(answer, str))
        self.last_beats = beats
        self.unseen = True

    @rule(batch=st.lists(draws.checkpoints, min_size=1, max_size=3))
    def checkpoint(self, batch: list[Say]) -> None:
        self._checkpoint([self.say(words) for words in batch])

    def _checkpoint(self, checkpoints: list[Checkpoint]) -> None:
        answers = [code(answer) for answer in self.rig.run(self.store.checkpoint(self.tenant, checkpoints))]
        assert answers == self.model.checkpoint(checkpoints, self.clock.now)
        self.rig.seen.update(f"checkpoint: {answer}" for answer in answers if isinstance(answer, str))
        self.last_checkpoints = checkpoints
        self.unseen = True

    @rule(words=draws.completes)
    def complete(self, words: Say) -> None:
        self._carry_out([self.say(words)])

    @rule(words=draws.fails)
    def fail(self, words: Say) -> None:
        self._carry_out([self.say(words)])

    @rule(words=st.one_of(draws.releases, draws.acks))
    def give_back(self, words: Say) -> None:
        self._carry_out([self.say(words)])

    @rule(
        pick=picks("live"),
        children=st.lists(st.integers(0, 5), max_size=3),
        stranger=st.sampled_from((False, False, True)),
    )
    def wait_for_children(self, pick: Pick, children: list[int], stranger: bool) -> None:
        held = self.held(pick)
        mine = [life.id for life in by_seq(self.model.jobs.values()) if life.born.parent_id == held.id]
        chosen = [mine[number % len(mine)] for number in children] if mine else []
        if stranger:
            chosen.append(held.id if mine else UNKNOWN)
        self._carry_out([Release(held.id, held.fence, held.worker, children=tuple(chosen))])

    @rule(batch=st.lists(draws.orders, min_size=2, max_size=5))
    def carry_out(self, batch: list[Say]) -> None:
        self._carry_out([self.say(words) for words in batch])

    @rule(verb=st.sampled_from(("carry_out", "heartbeat", "checkpoint")), after=st.sampled_from((0.0, 0.0, 1.0, 61.0)))
    def repeat(self, verb: str, after: float) -> None:
        """The answer got lost, so the same is said again."""
        self.clock.advance(after)
        if verb == "carry_out":
            self._carry_out(self.last_orders)
        elif verb == "heartbeat":
            self._heartbeat(self.last_beats)
        else:
            self._checkpoint(self.last_checkpoints)

    def _carry_out(self, orders: list[Order]) -> None:
        answers = self.rig.run(self.store.carry_out(self.tenant, orders))
        chosen = [answer.run_at if isinstance(answer, Receipt) else None for answer in answers]
        assert [code(answer) for answer in answers] == self.model.carry_out(orders, self.clock.now, chosen)
        for order, answer in zip(orders, answers, strict=True):
            self.rig.seen[f"{order.verb}: {code(answer) if isinstance(answer, Refused) else 'receipt'}"] += 1
        self.last_orders = orders
        self.unseen = True

    # Operators, the clock and the sweeps.

    @rule(words=draws.cancels)
    def cancel(self, words: Say) -> None:
        self._carry_out([self.say(words)])

    @rule(held=picks("live"), stop=draws.stops)
    def cancel_and_stop(self, held: Pick, stop: Say) -> None:
        """A request, and one of the many ways in which the run may end then."""
        id = self.held(held).id
        self._carry_out([Cancel(id, "user:ann", "enough")])
        about = self.held(held) if stop.of_a_grant else id
        self._carry_out([stop.make(about, *stop.rest)])

    @rule(words=st.one_of(draws.revokes, draws.clockwork))
    def steer(self, words: Say) -> None:
        self._carry_out([self.say(words)])

    @rule(type=st.sampled_from(TYPES), paused=st.booleans())
    def pause(self, type: str, paused: bool) -> None:
        actor = "user:ann" if paused else None
        self.rig.run(self.store.pause(self.tenant, type, actor=actor, reason=None))
        (self.model.paused.add if paused else self.model.paused.discard)(type)

    @rule(seconds=st.sampled_from((0.000001, 0.1, 1.0, 3.0, 10.0, 61.0, 300.0, -0.5, -10.0)))
    def time_passes(self, seconds: float) -> None:
        """Or steps back, as clocks do when they are set."""
        self.clock.advance(seconds)
        self.stepped_back |= seconds < 0

    @rule()
    def sweep(self) -> None:
        now = self.clock.now
        late = [life.id for life in self.model.expired(now)]
        self._carry_out([Expire(id) for id in self._due(self.rig.run(self.store.due_leases(10_000)), late)])
        late = [life.id for life in self.model.late(now)]
        self._carry_out([PassDeadline(id) for id in self._due(self.rig.run(self.store.due_deadlines(10_000)), late)])
        # Nobody can tell that a claim was forgotten whose jobs no longer run under it.
        self.rig.run(self.store.forget_claims(30.0, 10_000))

    def _due(self, found: Sequence[tuple[str, str]], foretold: list[str]) -> list[str]:
        mine = sorted(job_id for tenant, job_id in found if tenant == self.tenant)
        assert mine == sorted(foretold)
        return mine

    # Readers.

    @rule(
        statuses=st.lists(st.sampled_from(tuple(Status)), unique=True, max_size=3),
        type=optional(*TYPES),
        worker=optional(None, *WORKERS),
        parent=st.one_of(st.none(), st.none(), picks("any")),
        tags=st.one_of(st.just(()), subset(("x", "y"))),
        after=optional(None, 0.0, -10.0),
        before=optional(None, 0.0, -10.0, 1.0),
        limit=st.sampled_from((1, 3, 100)),
        place=optional(None, 1, 3),
    )
    def find(
        self,
        statuses: list[Status],
        type: str | None,
        worker: str | None,
        parent: Pick | None,
        tags: tuple[str, ...],
        after: float | None,
        before: float | None,
        limit: int,
        place: int | None,
    ) -> None:
        now = self.clock.now
        seqs = [life.seq for life in by_seq(self.model.jobs.values())]
        self._find(
            Filter(
                tuple(statuses),
                type,
                worker,
                None if parent is None else self.job(parent),
                tags,
                None if after is None else now + round(after * SECOND),
                None if before is None else now + round(before * SECOND),
                None if place is None or not seqs else seqs[place % len(seqs)],
                limit,
            )
        )

    def _find(self, filter: Filter) -> None:
        found = self.rig.run(self.store.find(self.tenant, filter))
        assert [job.id for job in found] == self.model.find(filter)
        lives = [self.model.jobs[job.id] for job in found]
        self._compare(found, lives, without=("payload", "result", "checkpoint", "error"))

    @invariant()
    def now_and_then_every_job_is_as_foretold(self) -> None:
        self.step += 1
        if self.unseen and self.step % self.rig.look_every == 0:
            self.every_job_is_as_foretold()

    def every_job_is_as_foretold(self) -> None:
        self.unseen = False
        lives = list(self.model.jobs.values())
        known = self.rig.run(self.store.get(self.tenant, [life.id for life in lives]))
        assert None not in known
        self._compare([job for job in known if job is not None], lives)

    def _compare(self, seen: Sequence[Job], lives: Sequence[Life], *, without: tuple[str, ...] = ()) -> None:
        if self.stepped_back:  # which of several times is the newest is then a matter of taste
            without += ("updated_at",)
        for job, life in zip(seen, lives, strict=True):
            record = life.record(self.tenant)
            facts = plain(job)
            for name in without:
                assert name == "updated_at" or facts[name] is None
                del facts[name], record[name]
            assert facts == record
            assert job.location(self.clock.now) == location(life, self.clock.now)

    # The end: everything has a way out, and the record is whole.

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None:
                self.every_job_is_as_foretold()
                self.rig.check_truth(self.tenant)
                self.find_everything()
                self.finish_everything()
                self.check_everything()
        finally:
            ends = [Cancel(id, "user:end", force=True) for id in self.model.jobs]
            self.rig.run(self.store.carry_out(self.tenant, ends))

    def find_everything(self) -> None:
        self._find(Filter(limit=1000))
        live = tuple(status for status in Status if status not in ENDED)
        counts = [len(self.rig.run(self.store.find(self.tenant, Filter(some, limit=1000)))) for some in (ENDED, live)]
        assert counts[0] == sum(life.status in ENDED for life in self.model.jobs.values())
        assert sum(counts) == len(self.model.jobs)

    def finish_everything(self) -> None:
        """Long after, with nothing paused, a worker that may do anything gets all there is, and nothing stays behind."""
        for type in sorted(self.model.paused):
            self.pause(type, False)
        self.clock.advance(FAR)
        self.sweep()
        self.clock.advance(FAR)
        for _ in range(100):
            if not (batch := self._claim(greedy("last"))):
                break
            self._carry_out([Complete(held.id, held.fence, held.worker, "1") for held in batch])
        left = [life.id for life in self.model.jobs.values() if life.status not in ENDED]
        assert not left, f"stuck: {left}"

    def check_everything(self) -> None:
        self.every_job_is_as_foretold()
        for job in self.rig.run(self.store.get(self.tenant, list(self.model.jobs))):
            assert job is not None
            rows = self.rig.run(self.store.history(self.tenant, job.id))
            assert [plain_line(row) for row in rows] == self.model.jobs[job.id].history
            check_history(job, rows)
            for row in rows:
                self.rig.seen[f"{row.from_status} → {row.to_status} by {row.verb}"] += 1
        verdict = self.rig.run(self.store.verify(self.tenant))
        assert verdict == (len(self.model.jobs), sum(life.version for life in self.model.jobs.values()), None)
        self.rig.check_truth(self.tenant)


def greedy(worker: str) -> ClaimAsk:
    return ClaimAsk(worker, capabilities=frozenset(CAPABILITIES), affinity_keys=None, limit=100, lease_seconds=30.0)


def code(answer: Any) -> Any:
    return answer.error.code if isinstance(answer, Refused) else answer


def location(life: Life, now: int) -> Location:
    if life.status == Status.RUNNING:
        return Location.IN_PROGRESS
    if life.status in ENDED:
        return Location.DEAD_LETTER if life.status == Status.DEAD_LETTER else Location.NONE
    if life.awaiting:
        return Location.BLOCKED
    return Location.DELAYED if life.run_at > now else Location.READY


@pytest.fixture
def rig(engine: str, postgres: Postgres) -> Iterator[Rig]:
    with asyncio.Runner() as runner, open_rig(engine, postgres, runner, ManualClock()) as opened:
        yield opened


def test_every_store_behaves_like_the_model(rig: Rig) -> None:
    run_state_machine_as_test(lambda: Machine(rig), settings=examples(500, 60, steps=rig.steps))  # type: ignore[arg-type]
    print("\n".join(f"{count:6} {what}" for what, count in sorted(rig.seen.items())))
    if not FAST:
        gates = {Verb.OPEN_GATE, Verb.DECIDE, Verb.EDIT}  # which no store has yet
        edges = {f"{a} → {b} by {verb}" for (a, b), verbs in EDGES.items() for verb in verbs - gates}
        edges = {edge for edge in edges if Status.WAITING_FOR_APPROVAL not in edge}
        # Those take a thousand releases.
        edges -= {f"running → {end} by release" for end in ("retry", "dead_letter")}
        assert edges <= set(rig.seen), f"never met: {edges - set(rig.seen)}"
