"""The store interface for `interlock doctor`."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

# Invariants of every job, agent and limit. The database enforces them: a violation requires disabling its constraints.
RULES: Final = {
    "attempt_within_max": "its attempt is between 1 and max_attempts, which is at most 100",
    "finished_exactly_when_ended": "it has a time of its end exactly when it has ended",
    "leased_exactly_when_running": "it has a worker and a lease exactly when it runs",
    "approval_exactly_when_waiting": "it names an approval exactly when it waits for one",
    "error_fits_status": "it has an error when it failed, and none when it succeeded",
    "running_has_started": "while it runs, it has the time of its start",
    "priority_in_range": "its priority is between -1000 and 1000",
    "waits_for_an_open_approval": "the approval it waits for is open",
    "open_approval_has_a_waiting_job": "of an open approval: its job waits for it",
    "running_has_a_lease": "while it runs, its lease is among the leases",
    "lease_has_a_running_job": "of a lease: its job runs",
    "ready_when_it_waits": "while it waits for a worker, it is among the ready jobs",
    "ready_only_when_it_waits": "it is among the ready jobs once, as it is, and only while it waits for a worker",
    "waits_for_living_children": "the children it waits for have not ended",
    "head_is_its_last_history": "its head is the hash of the last row of its history",
    "slots_are_counted": "of an agent: the slot counter equals the slots in use",
    "limits_are_counted": "of a limit or one of its keys: the counter equals the running jobs that name it",
}

EVIDENCE: Final = "left as it is: history is evidence; run interlock audit verify"
ENDED: Final = "left as it is: a job that has ended never changes"
CANCELLED: Final = "cancelled"


class Fault(NamedTuple):
    """A rule violated by a job, by an agent (named by kind and ID) or by a limit (named by name and key)."""

    tenant: str
    rule: str
    name: str


class DoctorStore(Protocol):
    """The part of a store that finds invalid rows and tests the basic operations."""

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        """List up to `limit` jobs, agents and limits of a tenant that violate a rule, as of one moment."""
        ...

    async def repair(self, fault: Fault, actor: str) -> str:
        """Repair what is derived from other rows; cancel a job whose own row is invalid. Return what was done."""
        ...

    async def rehearse(self) -> str:
        """Run a limited agent, an edit and a claim, then undo everything; return `ok` or what failed."""
        ...
