"""Run the campaign, or some of its parts, and write the report.

python -m campaign                       every part at full size: many hours
python -m campaign power-loss --size 1000 --seed 7
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from campaign.results import OUT, Outcome, Plan, write_report


class Part(NamedTuple):
    """A module of the campaign, its full size, and its time limit."""

    module: str
    size: int
    hours: float
    about: str


PARTS: Final = {
    "acknowledged": Part(
        "acknowledged", 2_000_000, 10.0, "jobs through real servers and clients that are killed, stopped and cut off"
    ),
    "crash-sweep": Part("crash_sweep", 20_000, 3.0, "crashes at every statement and commit of every verb"),
    "failover": Part("failover", 100, 6.0, "switchovers and kills of the leader of a cluster under load"),
    "fuzz": Part(
        "fuzz", 1_000_000, 12.0, "requests over all routes, roles and tenants, and as many inputs of decoders"
    ),
    "power-loss": Part("power_loss", 50_000, 3.0, "images of a SQLite file as a power loss leaves them"),
    "histories": Part("histories", 100_000, 4.0, "concurrent operations on one job, checked for linearizability"),
    "soak": Part("soak", 11_520, 16.5, "samples of memory, open files, sizes and latencies under steady load"),
    "simulation": Part(
        "simulation", 10_000_000, 12.0, "steps of producers, workers, approvers and faults beside a model"
    ),
}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="campaign", description="Try to break the promises of Interlock.")
    listed = "; ".join(f"{name}: {part.about}" for name, part in PARTS.items())
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"all if none is named. {listed}")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which the report names")
    parser.add_argument("--size", type=int, default=None, help="units of work of each part; default: its full size")
    parser.add_argument("--hours", type=float, default=None, help="time limit of each part")
    parser.add_argument("--out", type=Path, default=OUT, help="directory of the report")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"unknown part {sorted(unknown)[0]!r}: expected one of {', '.join(PARTS)}")
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    outcomes: list[Outcome] = []
    for name in options.parts or PARTS:
        part = PARTS[name]
        hours = part.hours if options.hours is None else options.hours
        plan = Plan(seed, options.size or part.size, hours * 3600, lambda line: print(line, flush=True))
        plan.say(f"== {name}: up to {plan.size:,} in {hours:g} h, seed {seed}")
        outcomes.append(importlib.import_module(f"campaign.{part.module}").run(plan))
        plan.say(f"== {name}: {outcomes[-1].verdict}, {outcomes[-1].done:,} {outcomes[-1].unit}")
        report = write_report(outcomes, options.out)
        plan.say(f"report so far: {report}")
    return 1 if any(outcome.violations for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
