"""What every engine offers to whoever checks it: a part of the contract of a store."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

# What must hold for every job and agent. The database sees to it: only whoever switches its rules off can break one.
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
    "slots_are_counted": "of an agent: as many slots are counted as are taken",
}

EVIDENCE: Final = "left as it is: history is evidence; interlock audit verify says more"
ENDED: Final = "left as it is: a job that has ended never changes"
CANCELLED: Final = "cancelled"


class Fault(NamedTuple):
    """A rule that a job breaks, or an agent, whose name is its kind and id."""

    tenant: str
    rule: str
    name: str


class DoctorStore(Protocol):
    """The part of a store that finds what no verb could have written, and tries out what every verb needs."""

    async def faults(self, tenant: str, limit: int) -> list[Fault]:
        """Jobs and agents of a tenant that break a rule, as of one moment; up to so many."""
        ...

    async def repair(self, fault: Fault, actor: str) -> str:
        """Put right what follows from other rows; a job whose own row is broken is cancelled. Says what was done."""
        ...

    async def rehearse(self) -> str:
        """Live through a limited agent, an edit and a claim, and undo all of it: `ok`, or what failed."""
        ...
