"""One state machine over both engines: whatever is called in whatever order, the store answers as the model does."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from interlock.domain.decide import Cancel, Complete, Expire, Order, PassDeadline, Release
from interlock.domain.job import Beat, Checkpoint, Enqueued, Filter, Job, NewJob, Receipt, Refused
from interlock.domain.lifecycle import Location, Status
from interlock.domain.policy import ClaimAsk
from interlock.domain.retry import Backoff
from tests.model.draws import (
    CAPABILITIES,
    TYPES,
    WORKERS,
    Draft,
    asks,
    beats,
    cancels,
    checkpoints,
    clockwork,
    drafts,
    finishes,
    grants,
    jobs,
    revokes,
)
from tests.model.model import ENDED, SECOND, Life, Model, Replay, by_seq, plain, plain_line
from tests.model.rig import Rig, examples, open_rig
from tests.model.words import Held, optional, subset
from tests.support.postgres import Postgres
from tests.support.stores import START, ManualClock
from tests.support.truth import check_history

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
        self.last_orders: list[Order] = []
        self.last_beats: list[Beat] = []
        self.last_checkpoints: list[Checkpoint] = []
        self.unseen = False
        self.stepped_back = False

    @initialize(target=grants, batch=st.lists(drafts, min_size=2, max_size=4))
    def begin(self, batch: list[Draft]) -> MultipleResults[Held]:
        return self._begin(batch)

    @rule(target=grants, batch=st.lists(drafts, min_size=1, max_size=3))
    def begin_more(self, batch: list[Draft]) -> MultipleResults[Held]:
        return self._begin(batch)

    def _begin(self, batch: list[Draft]) -> MultipleResults[Held]:
        """Work that is under way, since most rules are about that."""
        now = [draft._replace(run_in=None, base=draft.base._replace(delay_seconds=None)) for draft in batch]
        self._enqueue([self._new_job(draft) for draft in now], False)
        return self._claim(self._greedy("w1"))

    # Producers.

    @rule(target=jobs, batch=st.lists(drafts, min_size=1, max_size=3), whole=st.booleans())
    def enqueue(self, batch: list[Draft], whole: bool) -> MultipleResults[str]:
        return self._enqueue([self._new_job(draft) for draft in batch], whole)

    @rule(target=jobs, parent=grants, count=st.integers(1, 2), type=st.sampled_from(TYPES))
    def enqueue_children(self, parent: Held, count: int, type: str) -> MultipleResults[str]:
        children = [
            NewJob("", type, parent_id=parent.id, timeout_seconds=30.0, backoff=Backoff("fixed").to_text())
            for _ in range(count)
        ]
        return self._enqueue([self._new_job(Draft(child, None, None, parent.id)) for child in children], False)

    def _new_job(self, draft: Draft) -> NewJob:
        number = next(_ids)
        now = self.clock.now
        return draft.base._replace(
            id=f"{number * 2_654_435_761 % (1 << 32):08x}-0000-7000-8000-{number:012x}",  # ids are no order
            run_at=now + round(draft.run_in * SECOND) if draft.run_in is not None and draft.base.delay_seconds is None else None,
            deadline=None if draft.deadline_in is None else now + round(draft.deadline_in * SECOND),
            parent_id=draft.parent,
        )  # fmt: skip

    def _enqueue(self, batch: list[NewJob], whole: bool) -> MultipleResults[str]:
        answers = self.rig.run(self.store.enqueue(self.tenant, batch, whole=whole))
        expected = self.model.enqueue(batch, self.clock.now, whole=whole)
        self.unseen = True
        assert len(answers) == len(batch)
        refused = [code(answer) if isinstance(answer, Refused) else None for answer in answers]
        assert refused == [answer if isinstance(answer, str) else None for answer in expected]
        if whole and any(refused):
            return multiple()
        new = []
        for answer, foretold in zip(answers, expected, strict=True):
            if isinstance(foretold, Replay):
                assert answer == Enqueued(foretold.id, self.model.jobs[foretold.id].seq, True)
            elif isinstance(foretold, Life):
                assert isinstance(answer, Enqueued)
                assert (answer.id, answer.replayed) == (foretold.id, False)
                assert answer.seq > max((life.seq for life in self.model.jobs.values()), default=0)
                foretold.seq = answer.seq
                new.append(answer.id)
        return multiple(*new)

    # Workers.

    @rule(target=grants, ask=asks)
    def claim(self, ask: ClaimAsk) -> MultipleResults[Held]:
        return self._claim(ask)

    @rule(target=grants, worker=st.sampled_from(WORKERS))
    def claim_all(self, worker: str) -> MultipleResults[Held]:
        return self._claim(self._greedy(worker))

    def _greedy(self, worker: str) -> ClaimAsk:
        return ClaimAsk(worker, capabilities=frozenset(CAPABILITIES), affinity_keys=None, limit=100, lease_seconds=30.0)

    def _claim(self, ask: ClaimAsk) -> MultipleResults[Held]:
        granted = self.rig.run(self.store.claim(self.tenant, ask))
        expected = self.model.claim(ask, self.clock.now)
        self.unseen = True
        assert [job.id for job in granted] == [life.id for life in expected]
        self._compare(granted, expected)
        return multiple(*(Held(job.id, job.fence, ask.worker) for job in granted))

    @rule(lost=consumes(grants))
    def crash(self, lost: Held) -> None:
        """The worker is gone and forgets what it had; the store is not told."""

    @rule(batch=st.lists(beats, min_size=1, max_size=3))
    def heartbeat(self, batch: list[Beat]) -> None:
        self.last_beats = batch
        answers = self.rig.run(self.store.heartbeat(self.tenant, batch))
        assert [code(answer) for answer in answers] == self.model.heartbeat(batch, self.clock.now)
        self.unseen = True

    @rule(batch=st.lists(checkpoints, min_size=1, max_size=3))
    def checkpoint(self, batch: list[Checkpoint]) -> None:
        self.last_checkpoints = batch
        answers = self.rig.run(self.store.checkpoint(self.tenant, batch))
        assert [code(answer) for answer in answers] == self.model.checkpoint(batch, self.clock.now)
        self.unseen = True

    @rule(order=finishes)
    def finish(self, order: Order) -> None:
        self._carry_out([order])

    @rule(order=st.one_of(cancels, cancels, revokes, clockwork))
    def steer(self, order: Order) -> None:
        self._carry_out([order])

    @rule(batch=st.lists(st.one_of(finishes, finishes, cancels, revokes, clockwork), min_size=2, max_size=5))
    def carry_out(self, batch: list[Order]) -> None:
        self._carry_out(batch)

    @rule(verb=st.sampled_from(("carry_out", "heartbeat", "checkpoint")), after=st.sampled_from((0.0, 0.0, 1.0, 61.0)))
    def repeat(self, verb: str, after: float) -> None:
        """The answer got lost, so the worker says it again."""
        self.clock.advance(after)
        if verb == "carry_out":
            self._carry_out(self.last_orders)
        elif verb == "heartbeat":
            self.heartbeat(self.last_beats)
        else:
            self.checkpoint(self.last_checkpoints)

    @rule(held=grants, data=st.data())
    def release_until_children_end(self, held: Held, data: st.DataObject) -> None:
        mine = [life.id for life in by_seq(self.model.jobs.values()) if life.born.parent_id == held.id]
        children = data.draw(st.lists(st.sampled_from(mine), max_size=3)) if mine else []
        self._carry_out([Release(held.id, held.fence, held.worker, children=tuple(children))])

    def _carry_out(self, orders: list[Order]) -> list[Receipt | Refused]:
        answers = self.rig.run(self.store.carry_out(self.tenant, orders))
        chosen = [answer.run_at if isinstance(answer, Receipt) else None for answer in answers]
        assert [code(answer) for answer in answers] == self.model.carry_out(orders, self.clock.now, chosen)
        self.last_orders = orders
        self.unseen = True
        self.rig.seen.update(str(code(answer)) for answer in answers if isinstance(answer, Refused))
        return answers

    # The clock, the sweeps and the operators.

    @rule(seconds=st.sampled_from((0.000001, 0.1, 1.0, 3.0, 10.0, 61.0, 300.0, -0.5, -10.0)))
    def time_passes(self, seconds: float) -> None:
        """Or steps back, as clocks do when they are set."""
        self.clock.advance(seconds)
        self.stepped_back |= seconds < 0

    @rule()
    def sweep(self) -> None:
        self.sweep_leases()
        self.sweep_deadlines()
        # Nobody can tell that a claim was forgotten whose jobs no longer run under it.
        self.rig.run(self.store.forget_claims(30.0, 10_000))

    def sweep_leases(self) -> None:
        due = self.rig.run(self.store.due_leases(10_000))
        found = [each.job_id for each in due if each.tenant == self.tenant]
        assert sorted(found) == sorted(life.id for life in self.model.expired(self.clock.now))
        self._carry_out([Expire(id) for id in found])

    def sweep_deadlines(self) -> None:
        due = self.rig.run(self.store.due_deadlines(10_000))
        found = [each.job_id for each in due if each.tenant == self.tenant]
        assert sorted(found) == sorted(life.id for life in self.model.late(self.clock.now))
        self._carry_out([PassDeadline(id) for id in found])

    @rule(type=st.sampled_from(TYPES), paused=st.booleans())
    def pause(self, type: str, paused: bool) -> None:
        actor = "user:ann" if paused else None
        self.rig.run(self.store.pause(self.tenant, type, actor=actor, reason=None))
        (self.model.paused.add if paused else self.model.paused.discard)(type)

    # Readers.

    @rule(
        statuses=st.lists(st.sampled_from(tuple(Status)), unique=True, max_size=3),
        type=optional(*TYPES),
        worker=optional(*WORKERS),
        parent=st.one_of(st.none(), jobs),
        tags=subset(("x", "y")),
        after=optional(0.0, -10.0),
        before=optional(0.0, -10.0, 1.0),
        limit=st.sampled_from((1, 3, 100)),
        place=optional(1, 3),
    )
    def find(
        self,
        statuses: list[Status],
        type: str | None,
        worker: str | None,
        parent: str | None,
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
                tuple(statuses), type, worker, parent, tags,
                None if after is None else now + round(after * SECOND),
                None if before is None else now + round(before * SECOND),
                None if place is None or not seqs else seqs[place % len(seqs)], limit,
            )
        )  # fmt: skip

    def _find(self, filter: Filter) -> None:
        found = self.rig.run(self.store.find(self.tenant, filter))
        assert [job.id for job in found] == self.model.find(filter)
        lives = [self.model.jobs[job.id] for job in found]
        self._compare(found, lives, without=("payload", "result", "checkpoint", "error"))

    @invariant()
    def every_job_is_as_foretold(self) -> None:
        if not self.unseen:
            return
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
                self.rig.check_truth(self.tenant)
                self.find_everything()
                self.finish_everything()
                self.check_truth()
        finally:
            self.rig.run(
                self.store.carry_out(self.tenant, [Cancel(id, "user:end", force=True) for id in self.model.jobs])
            )

    def check_truth(self) -> None:
        self.every_job_is_as_foretold()
        ids = list(self.model.jobs)
        for job in self.rig.run(self.store.get(self.tenant, ids)):
            assert job is not None
            rows = self.rig.run(self.store.history(self.tenant, job.id))
            assert [plain_line(row) for row in rows] == self.model.jobs[job.id].history
            check_history(job, rows)
            self.rig.seen.update(f"{row.from_status} → {row.to_status} by {row.verb}" for row in rows)
        verdict = self.rig.run(self.store.verify(self.tenant))
        rows_expected = sum(life.version for life in self.model.jobs.values())
        assert verdict == (len(self.model.jobs), rows_expected, None)
        self.rig.check_truth(self.tenant)

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
            if not (batch := self._claim(self._greedy("last")).values):
                break
            self._carry_out([Complete(held.id, held.fence, held.worker, "1") for held in batch])
        left = [life.id for life in self.model.jobs.values() if life.status not in ENDED]
        assert not left, f"stuck: {left}"


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
    run_state_machine_as_test(lambda: Machine(rig), settings=examples(500, 60))  # type: ignore[arg-type]
    print("\n".join(f"{count:6} {what}" for what, count in sorted(rig.seen.items())))
