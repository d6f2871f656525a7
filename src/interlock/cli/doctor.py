"""`interlock doctor`: is everything as it must be for what Interlock promises."""

from __future__ import annotations

import sys
import time
from typing import Final

import interlock
from interlock.cli import output
from interlock.cli.session import FAILED, Common, run
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.engine.engine import Engine

NOTHING = Common()
MOST_SKEW_SECONDS: Final = 5.0

# What a store says of itself, where there is one right answer.
RIGHT: Final = {
    "journal_mode": "wal",
    "synchronous": "full",
    "integrity": "ok",
    "permissions": "0600",
    "synchronous_commit": "on",
    "fsync": "on",
    "full_page_writes": "on",
    "row_security": "forced",
    "history": "append-only",
}
ADVICE: Final = {
    "permissions": "others can read payloads and hashes of tokens; chmod 600 the file",
    "synchronous_commit": "an acknowledged job may be lost",
    "fsync": "an acknowledged job may be lost",
    "row_security": "run interlock migrate as the owner of the schema",
    "history": "revoke what was granted on interlock.job_history",
}


def doctor(*, common: Common = NOTHING) -> None:
    """Check versions, durability, rights, schema and clock. Exit code 1 if something is wrong."""

    async def command(engine: Engine, who: Principal) -> dict[str, str]:
        before = time.time()
        now = await engine.reads.now() / SECOND
        after = time.time()
        skew = max(before - now, now - after, 0.0)
        return await engine.store.facts() | {"clock_skew_seconds": f"{skew:.3f}"}

    facts = run(common, command)
    wrong = faults(facts)
    if common.json:
        output.as_json({"interlock": interlock.__version__, **facts, "notes": notes(facts), "wrong": wrong})
    else:
        output.facts({"interlock": interlock.__version__, **facts})
        for note in notes(facts):
            output.say(f"note: {note}")
        for fault in wrong:
            output.say(f"WRONG: {fault}")
        if not wrong:
            output.say("everything is in order")
    if wrong:
        sys.exit(FAILED)


def faults(facts: dict[str, str]) -> list[str]:
    """A sentence for everything that is not as it must be."""
    wrong = not_right(facts)
    if facts.get("history_partitions", "none").startswith("missing"):
        wrong.append(f"history_partitions: {facts['history_partitions']}; let a server run, whose upkeep makes them")
    if float(facts["clock_skew_seconds"]) > MOST_SKEW_SECONDS:
        wrong.append(
            f"the clock of the database differs from this machine's by {facts['clock_skew_seconds']} s: set one of them"
        )
    return wrong


def not_right(facts: dict[str, str]) -> list[str]:
    """A sentence for each of these facts that has one right answer, and another here."""
    return [
        f"{name} is {facts[name]}, not {right}" + (f": {ADVICE[name]}" if name in ADVICE else "")
        for name, right in RIGHT.items()
        if facts.get(name, right) != right
    ]


def notes(facts: dict[str, str]) -> list[str]:
    """What is allowed, and could be better."""
    if facts.get("rights", "app") == "app":
        return []
    return [
        f"this login has the rights of the {facts['rights']}, which are laid aside while Interlock runs; "
        "let servers and workers connect as a login that has the role interlock_app and no more"
    ]
