"""The state machine of tests/model for millions of steps: both engines and a model, over a virtual clock.

One thread, seeded: a failing seed replays the same steps.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback

from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from campaign.results import Outcome, Plan, Stopwatch
from tests.model.rig import Rig, examples, postgres_rig, sqlite_rig
from tests.model.test_state_machine import Machine
from tests.support.postgres import Postgres, postgres
from tests.support.stores import ManualClock, make_template

SCRIPTS = 40  # of one seed
STEPS = 50  # of a script


def _run_seed(rig: Rig, seed: int, scripts: int) -> int:
    """Run the scripts of one seed and return how many steps they took."""
    steps = 0

    class Counted(Machine):
        def teardown(self) -> None:
            nonlocal steps
            steps += self.step
            super().teardown()

    test = seeded(seed)(lambda: Counted(rig))
    settled = settings(examples(scripts, scripts, steps=STEPS), database=None)
    run_state_machine_as_test(test, settings=settled)  # type: ignore[arg-type]
    return steps


def run_on(server: Postgres, plan: Plan, scripts: int = SCRIPTS) -> Outcome:
    """Run seed after seed on both engines."""
    outcome = Outcome("simulation", "steps", plan.seed, plan.size)
    watch = Stopwatch(plan, outcome)
    with asyncio.Runner() as runner:
        clocks = ManualClock(), ManualClock()
        with sqlite_rig(runner, clocks[0]) as file, postgres_rig(server, runner, clocks[1]) as database:
            steps = {"sqlite": 0, "postgres": 0}
            for number in itertools.count():
                if watch.is_over or len(outcome.violations) >= 3:
                    break
                for engine, rig in (("sqlite", file), ("postgres", database)):
                    try:
                        steps[engine] += (count := _run_seed(rig, plan.seed + number, scripts))
                        outcome.done += count
                    except Exception:
                        last = traceback.format_exc().strip().splitlines()[-12:]
                        outcome.violations.append(f"{engine}, seed {plan.seed + number}: " + " | ".join(last))
            outcome.numbers |= {"steps": steps, "results seen": len(file.seen | database.seen)}
    return outcome


def run(plan: Plan) -> Outcome:
    with postgres() as server:
        asyncio.run(make_template(server))
        return run_on(server, plan)
