"""Concurrent operations on one job, checked for linearizability against the model.

A history is a few rounds. In a round, several clients call at the same moment: claim, heartbeat, complete, fail,
release, wait for a message, send one, request approval, decide, cancel, revoke. The clock stands still within a round.
The results are explained if some order of the calls, which respects that a call that returned precedes one that began
later, gives the same results in the model. The model shares no code with the stores. The last round is a claim that
nobody disturbs.

On PostgreSQL a claim never waits: it passes over a job that another call has locked at that moment. There an empty
claim that overlaps with another call of the same job counts as explained.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import pickle
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from campaign.results import Outcome, Plan, Stopwatch
from campaign.stores import several_stores
from interlock.domain.approval import CastVote, Decision, RequestApproval
from interlock.domain.decide import AcknowledgeCancel, CancelJob, CompleteJob, FailJob, ReleaseJob, RevokeLease
from interlock.domain.job import Enqueued, Heartbeat, NewJob, Receipt
from interlock.domain.message import AwaitMessage, SendMessage, Sent
from interlock.domain.policy import ClaimFilter
from interlock.domain.retry import Backoff
from interlock.storage.contract import Store
from tests.model.machine import code
from tests.model.model import Model
from tests.support.postgres import Postgres, postgres
from tests.support.stores import ENGINES, START, ManualClock, make_template

TENANT: Final = "default"
ROUNDS: Final = 4
STORES: Final = 3
TOGETHER: Final = 24  # histories at a time
WORKERS: Final = ("w1", "w2")
MESSAGES: Final = ("m1", "m2", "m3")  # few, so that some are repeated
NAMES: Final = ("go", "go", "stop")
PAYLOADS: Final = ("1", "1", "2")
_moments = itertools.count()
_ids = itertools.count(1)


class Call(NamedTuple):
    """One operation: how a store runs it, how the model does, and both results in one form."""

    what: str
    store: Callable[[Store], Any]
    model: Callable[[Model, int, Any], Any]


class Made(NamedTuple):
    """A call that was made: between which moments, and its result."""

    call: Call
    began: int
    ended: int
    result: Any


class Round(NamedTuple):
    now: int
    calls: list[Made]


class History(NamedTuple):
    engine: str
    new: NewJob
    seq: int
    created_at: int
    rounds: list[Round]


def claim(worker: str, type: str) -> Call:
    ask = ClaimFilter(worker, types=frozenset({type}), limit=1, lease_seconds=60.0)

    async def run(store: Store) -> Any:
        return [(job.id, job.fence, job.version, job.attempt) for job in await store.claim(TENANT, ask)]

    def foretell(model: Model, now: int, _: Any) -> Any:
        return [(life.id, life.fence, life.version, life.attempt) for life in model.claim(ask, now)]

    return Call(f"claim by {worker}", run, foretell)


def order(what: str, command: Any) -> Call:
    async def run(store: Store) -> Any:
        return code((await store.carry_out(TENANT, [command]))[0])

    def foretell(model: Model, now: int, seen: Any) -> Any:
        chosen = seen.run_at if isinstance(seen, Receipt) else None
        return model.carry_out([command], now, [chosen])[0]

    return Call(what, run, foretell)


def heartbeat(id: str, fence: int, worker: str) -> Call:
    one = Heartbeat(id, fence, worker, 60.0)

    async def run(store: Store) -> Any:
        return code((await store.heartbeat(TENANT, [one]))[0])

    def foretell(model: Model, now: int, _: Any) -> Any:
        return model.heartbeat([one], now)[0]

    return Call(f"heartbeat {fence} of {worker}", run, foretell)


def decide(approval: str, voter: str, decision: Decision) -> Call:
    vote = CastVote(approval, voter, decision, None)

    async def run(store: Store) -> Any:
        (answer,) = await store.approvals.decide(TENANT, [vote])
        rejected = code(answer)
        return rejected if isinstance(rejected, str) else (answer.status, {v.voter: v.decision for v in answer.votes})  # type: ignore[union-attr]

    def foretell(model: Model, now: int, _: Any) -> Any:
        return model.decide([vote], now)[0]

    return Call(f"{decision} by {voter}", run, foretell)


def send(id: str, message_id: str, name: str, payload: str) -> Call:
    message = SendMessage(id, message_id, "user:ann", name, payload)

    async def run(store: Store) -> Any:
        answer = await store.messages.send(TENANT, message)
        return (answer.message.seq, answer.is_new) if isinstance(answer, Sent) else code(answer)

    def foretell(model: Model, now: int, _: Any) -> Any:
        return model.send(message, now)

    return Call(f"send {message_id}", run, foretell)


class Author:
    """Chooses the calls of the next round from what the clients of one job know by now."""

    def __init__(self, new: NewJob, dice: random.Random) -> None:
        self._new, self._dice = new, dice
        self._leases: list[tuple[int, str]] = []
        self._approvals: list[str] = []

    def round(self) -> list[Call]:
        return [self._call() for _ in range(self._dice.choice((2, 3, 3, 4)))]

    def last_round(self) -> list[Call]:
        return [claim(WORKERS[0], self._new.type)]

    def learn(self, calls: Sequence[Made]) -> None:
        for made in calls:
            if made.call.what.startswith("claim"):
                self._leases += [(fence, made.call.what.split()[-1]) for _, fence, _, _ in made.result]

    def _call(self) -> Call:
        id, dice = self._new.id, self._dice
        if dice.random() < 0.1:
            return send(id, dice.choice(MESSAGES), dice.choice(NAMES), dice.choice(PAYLOADS))
        if not self._leases or dice.random() < 0.25:
            return claim(dice.choice(WORKERS), self._new.type)
        fence, worker = self._leases[-1] if dice.random() < 0.8 else dice.choice(self._leases)
        held = (id, fence, worker)
        approval = f"{next(_ids):08x}-9a7e-7000-8000-{dice.getrandbits(48):012x}"
        choices: list[Callable[[], Call]] = [
            lambda: order("complete", CompleteJob(*held, '"done"')),
            lambda: order("fail", FailJob(*held, '{"message":"no","kind":"Boom"}', dice.random() < 0.7)),
            lambda: order("release", ReleaseJob(*held)),
            lambda: order("wait for a message", ReleaseJob(*held, message=self._awaited())),
            lambda: order("request approval", self._request(approval, *held)),
            lambda: order("acknowledge cancel", AcknowledgeCancel(*held)),
            lambda: order("cancel", CancelJob(id, "user:ann", "enough", dice.random() < 0.3)),
            lambda: order("revoke", RevokeLease(id, "user:ann", "stuck")),
            lambda: heartbeat(*held),
        ]
        if self._approvals:
            newest = self._approvals[-1]
            choices += [lambda: decide(newest, dice.choice(("user:ann", "user:bob")), dice.choice(tuple(Decision)))] * 3
        return dice.choice(choices)()

    def _awaited(self) -> AwaitMessage:
        return AwaitMessage(self._dice.choice(NAMES), self._dice.choice((0, 0, 1)))

    def _request(self, approval: str, id: str, fence: int, worker: str) -> RequestApproval:
        self._approvals.append(approval)
        return RequestApproval(id, fence, worker, approval, "Sure?", opened_by="token:w")


def explained(history: History) -> str | None:
    """Return None if the model can explain the history, else what it cannot explain."""
    first = Model(TENANT)
    first.enqueue([history.new], history.created_at, whole=False)
    first.jobs[history.new.id].seq = history.seq
    states = [first]
    for number, round in enumerate(history.rounds, 1):
        passed_over = _may_pass_over(round.calls) if history.engine == "postgres" else frozenset()
        ends = [end for state in states for end in _orders(state, round.now, round.calls, passed_over)]
        states = list({pickle.dumps(end): end for end in ends}.values())
        if not states:
            calls = "; ".join(f"{made.call.what} → {made.result}" for made in round.calls)
            return f"job {history.new.id}, round {number}: no order explains: {calls}"
    return None


def _may_pass_over(calls: Sequence[Made]) -> frozenset[int]:
    """The moments at which those empty claims began that overlap with another call."""
    return frozenset(
        made.began
        for made in calls
        if made.result == []
        and any(one is not made and one.began < made.ended and made.began < one.ended for one in calls)
    )


def _orders(state: Model, now: int, calls: Sequence[Made], passed_over: frozenset[int]) -> list[Model]:
    """The states after every order of the calls whose results are those that were seen."""
    if not calls:
        return [state]
    ends: list[Model] = []
    for i, made in enumerate(calls):
        rest = [*calls[:i], *calls[i + 1 :]]
        if any(other.ended < made.began for other in rest):
            continue  # another call had returned before this one began
        after = copy.deepcopy(state)
        if made.call.model(after, now, made.result) == made.result:
            ends += _orders(after, now, rest, passed_over)
        elif made.began in passed_over:
            ends += _orders(state, now, rest, passed_over)
    return ends


async def record(
    engine: str, stores: Sequence[Store], clock: ManualClock, dice: random.Random, rounds: int
) -> list[History]:
    """Make several histories side by side; the clock is common to all."""
    batch = [
        NewJob(
            f"{next(_ids):08x}-0000-7000-8000-{dice.getrandbits(48):012x}",
            f"t{next(_ids)}",
            backoff=Backoff("fixed", 0.5).to_text(),
        )
        for _ in range(TOGETHER)
    ]
    created_at = clock.now
    added = await stores[0].enqueue(TENANT, batch)
    histories = [
        History(engine, new, one.seq, created_at, [])
        for new, one in zip(batch, added, strict=True)
        if isinstance(one, Enqueued)
    ]
    authors = [Author(new, dice) for new in batch]
    for number in range(rounds + 1):
        clock.advance(1.0)
        now = clock.now
        plans = [
            [(call, dice.choice(stores)) for call in (author.round() if number < rounds else author.last_round())]
            for author in authors
        ]
        made = await asyncio.gather(*(asyncio.gather(*(_make(call, store) for call, store in plan)) for plan in plans))
        for history, author, calls in zip(histories, authors, made, strict=True):
            author.learn(calls)
            history.rounds.append(Round(now, calls))
    return histories


async def _make(call: Call, store: Store) -> Made:
    began = next(_moments)
    result = await call.store(store)
    return Made(call, began, next(_moments), result)


async def run_on(server: Postgres, plan: Plan) -> Outcome:
    """Record and check histories on both engines in turns."""
    outcome = Outcome("histories", "histories", plan.seed, plan.size)
    watch, calls = Stopwatch(plan, outcome), Counter[str]()
    clocks = {engine: ManualClock(START) for engine in ENGINES}
    async with (
        several_stores("sqlite", STORES, server, clocks["sqlite"]) as files,
        several_stores("postgres", STORES, server, clocks["postgres"]) as databases,
    ):
        stores = {"sqlite": files, "postgres": databases}
        for number in itertools.count():
            if watch.is_over or len(outcome.violations) >= 10:
                break
            engine = ENGINES[number % len(ENGINES)]
            dice = random.Random(plan.seed * 1_000_003 + number)
            for history in await record(engine, stores[engine], clocks[engine], dice, ROUNDS):
                calls.update(made.call.what.split()[0] for round in history.rounds for made in round.calls)
                outcome.done += 1
                if (fault := explained(history)) is not None:
                    outcome.violations.append(f"{engine}, batch {number} of seed {plan.seed}: {fault}")
    outcome.numbers["calls"] = dict(calls)
    return outcome


def run(plan: Plan) -> Outcome:
    with postgres() as server:
        asyncio.run(make_template(server))
        return asyncio.run(run_on(server, plan))
