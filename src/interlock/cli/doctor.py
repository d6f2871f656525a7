"""`interlock doctor`: check everything that Interlock's guarantees depend on."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Final, NamedTuple

from cyclopts import Parameter

import interlock
from interlock.cli import output
from interlock.cli.runner import COMMON, FAILED, Common, on_database
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND
from interlock.engine.engine import Engine
from interlock.storage.contract import Store
from interlock.storage.contract.doctor import RULES, Fault

MAX_SKEW_SECONDS: Final = 5.0
MAX_FAULTS: Final = 100  # of a tenant

# Diagnostics of a store that have exactly one correct value.
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
    "rehearsal": "ok",
}
ADVICE: Final = {
    "permissions": "others can read payloads and hashes of tokens; chmod 600 the file",
    "synchronous_commit": "an acknowledged job may be lost",
    "fsync": "an acknowledged job may be lost",
    "row_security": "run interlock migrate as the owner of the schema",
    "history": "revoke additional privileges on interlock.job_history",
    "rehearsal": "jobs cannot run; undo manual changes to the database, and run interlock migrate as the owner",
}


def doctor(
    *,
    repair: Annotated[
        bool, Parameter(negative="", help="fix rows that violate a constraint, or cancel their jobs")
    ] = False,
    common: Common = COMMON,
) -> None:
    """Check versions, durability, permissions, schema, clock and the rows of all tenants. Exit code 1 on errors.

    A limited agent, an edit and a claim are tested in a transaction that is rolled back.
    """

    async def command(engine: Engine, who: Principal) -> tuple[dict[str, str], list[Broken]]:
        broken = await _broken(
            engine.store, who.actor if repair else None
        )  # before the facts, so that they include the repairs
        before = time.time()
        now = await engine.queries.now() / SECOND
        after = time.time()
        skew = max(before - now, now - after, 0.0)
        facts = await engine.store.facts()
        facts |= {"clock_skew_seconds": f"{skew:.3f}", "rehearsal": await engine.store.rehearse()}
        return facts, broken

    facts, broken = on_database(common, command)
    wrong = faults(facts) + [row.sentence for row in broken if row.repaired is None]
    repaired = [f"{row.sentence}: {row.repaired}" for row in broken if row.repaired is not None]
    if common.json:
        rows = [{**row.fault._asdict(), "repaired": row.repaired} for row in broken]
        results = {"notes": notes(facts), "wrong": wrong, "broken": rows}
        output.print_json({"interlock": interlock.__version__, **facts, **results})
    else:
        output.facts({"interlock": interlock.__version__, **facts})
        for note in notes(facts):
            output.print_line(f"note: {note}")
        for line in repaired:
            output.print_line(f"repaired: {line}")
        for fault in wrong:
            output.print_line(f"error: {fault}")
        if any(row.repaired is None for row in broken):
            output.print_line("run interlock doctor --repair to fix these rows or cancel their jobs")
        if not wrong:
            output.print_line("all checks passed")
    if wrong:
        sys.exit(FAILED)


class Broken(NamedTuple):
    """A row that violates a constraint, and its repair."""

    fault: Fault
    repaired: str | None = None

    @property
    def sentence(self) -> str:
        tenant, rule, name = self.fault
        return f"{name} of tenant {tenant} violates {rule}: {RULES[rule]}"


async def _broken(store: Store, actor: str | None) -> list[Broken]:
    """Return rows of any tenant that break an invariant; if `actor` is given, repair them one at a time."""
    found = [fault for tenant in await store.audit.tenants() for fault in await store.faults(tenant, MAX_FAULTS)]
    if actor is None:
        return [Broken(fault) for fault in found]
    done = [Broken(fault, await store.repair(fault, actor)) for fault in found]
    left = {fault for tenant in {fault.tenant for fault in found} for fault in await store.faults(tenant, MAX_FAULTS)}
    return [row if row.fault not in left else Broken(row.fault) for row in done]


def faults(facts: dict[str, str]) -> list[str]:
    """Return a message for each failed check."""
    wrong = not_right(facts)
    if facts.get("history_partitions", "none").startswith("missing"):
        wrong.append(
            f"history_partitions: {facts['history_partitions']}; start a server, whose maintenance creates them"
        )
    if float(facts["clock_skew_seconds"]) > MAX_SKEW_SECONDS:
        wrong.append(
            f"the database clock is off by {facts['clock_skew_seconds']} s from this machine's: synchronize them"
        )
    return wrong


def not_right(facts: dict[str, str]) -> list[str]:
    """Return a message for each diagnostic that differs from its only correct value."""
    return [
        f"{name} is {facts[name]}, not {right}" + (f": {ADVICE[name]}" if name in ADVICE else "")
        for name, right in RIGHT.items()
        if facts.get(name, right) != right
    ]


def notes(facts: dict[str, str]) -> list[str]:
    """Return suggestions about settings that are allowed but could be better."""
    if facts.get("rights", "app") == "app":
        return []
    return [
        f"this login has the privileges of the {facts['rights']}, which Interlock does not use at run time; "
        "let servers and workers connect with a login that has only the role interlock_app"
    ]
