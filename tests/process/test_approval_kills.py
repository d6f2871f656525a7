"""SIGKILL between the steps of an approval, and within them: each is closed once, and the decision takes effect."""

from __future__ import annotations

import itertools
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from tests.process.conftest import FAST, Checker
from tests.process.crash_rounds import VERBS, Ledger, finish_remaining, listen, rounds_in_a_process
from tests.process.test_kills import AHEAD, MAX_WAIT, orphans_gone
from tests.support.forms import chance
from tests.support.workers import Member

KILLS: Final = 2 * len(VERBS) if FAST else 72

Property = Callable[[str, object], None]


async def test_a_process_killed_between_the_steps_of_an_approval_loses_no_decision_and_makes_none_twice(
    checker: Checker, record_property: Property
) -> None:
    await listen(checker.store)
    ledger = Ledger()
    moments: Counter[str] = Counter()
    numbers = itertools.count(1)
    waiting: deque[Member] = deque()
    dice = chance()
    try:
        for kill in range(KILLS):
            while len(waiting) < AHEAD:
                waiting.append(Member(rounds_in_a_process, checker.place, next(numbers)))
            member = waiting.popleft()
            moments[kill_in(member, VERBS[kill % len(VERBS)], ledger, dice)] += 1
            member.close()
    finally:
        for member in waiting:
            member.close()
    if checker.place.engine == "postgres":
        await orphans_gone(checker)
    approvals = await ledger.compare(checker)
    ends = await finish_remaining(checker)
    await ledger.compare(checker)
    line = (
        f"{checker.place.engine}: {KILLS} kills: {dict(sorted(moments.items()))}; {ledger.answers} calls answered; "
        f"gates: {dict(approvals)}; ends: {dict(ends)}"
    )
    print(line)
    record_property("gate_kills", line)
    assert approvals["open"] < approvals.total(), approvals
    assert ends["succeeded"]


def kill_in(member: Member, verb: str, ledger: Ledger, dice: random.Random) -> str:
    """Let it work until it begins a certain call, and kill it a moment later; where it was then."""
    assert member.receive() is None
    member.pipe.send("go")
    last = ("before", "start")
    while last != ("before", verb):
        when, what, facts = member.receive()
        ledger.note(when, what, facts)
        last = (when, what)
    for when, what, facts in member.kill_within(dice.uniform(0, MAX_WAIT)):
        ledger.note(when, what, facts)
        last = (when, what)
    return f"in {last[1]}" if last[0] == "before" else f"after {last[1]}"
