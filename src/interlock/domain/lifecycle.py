"""The statuses of a job and all legal transitions: the reference for the checks of every engine."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Status(StrEnum):
    """The status of a job. The last four are terminal."""

    __hash__ = str.__hash__  # that of Enum is a Python function

    QUEUED = "queued"
    RETRY = "retry"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"
    CANCELLED = "cancelled"


class Verb(StrEnum):
    """The operation of a transition, as recorded in the history."""

    __hash__ = str.__hash__

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    REQUEST_APPROVAL = "request_approval"
    DECIDE = "decide"
    CANCEL = "cancel"
    CANCEL_ACK = "cancel_ack"
    REVOKE = "revoke"
    EXPIRE = "expire"
    PASS_DEADLINE = "pass_deadline"
    EXCEED_BUDGET = "exceed_budget"
    EDIT = "edit"
    SEND_MESSAGE = "send_message"
    ACKNOWLEDGE = "acknowledge"


class Location(StrEnum):
    """The location of a job, derived from its status, its due time and what it waits for."""

    READY = "ready"
    DELAYED = "delayed"
    BLOCKED = "blocked"
    IN_PROGRESS = "in_progress"
    DEAD_LETTER = "dead_letter"
    NONE = "none"


TERMINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.DEAD_LETTER, Status.CANCELLED})
CLAIMABLE: Final = frozenset({Status.QUEUED, Status.RETRY})
# Jobs in these statuses need attention until they are acknowledged or redriven.
UNRESOLVED: Final = frozenset({Status.FAILED, Status.DEAD_LETTER})

# Operations by which a worker ends its own lease; after any other operation the worker has lost it.
FINISHES: Final = frozenset({Verb.COMPLETE, Verb.FAIL, Verb.RELEASE, Verb.REQUEST_APPROVAL, Verb.CANCEL_ACK})

# Operations by which a worker loses a lease: what it had not reported is not known.
LOSSES: Final = frozenset({Verb.EXPIRE, Verb.REVOKE})

EDGES: Final[dict[tuple[Status | None, Status], frozenset[Verb]]] = {
    (None, Status.QUEUED): frozenset({Verb.ENQUEUE}),
    (Status.QUEUED, Status.QUEUED): frozenset({Verb.EDIT, Verb.SEND_MESSAGE}),
    (Status.QUEUED, Status.RUNNING): frozenset({Verb.CLAIM}),
    (Status.QUEUED, Status.CANCELLED): frozenset({Verb.CANCEL, Verb.PASS_DEADLINE}),
    (Status.QUEUED, Status.FAILED): frozenset({Verb.EXCEED_BUDGET}),
    (Status.RETRY, Status.RETRY): frozenset({Verb.EDIT}),
    (Status.RETRY, Status.RUNNING): frozenset({Verb.CLAIM}),
    (Status.RETRY, Status.FAILED): frozenset({Verb.PASS_DEADLINE, Verb.EXCEED_BUDGET}),
    (Status.RETRY, Status.CANCELLED): frozenset({Verb.CANCEL}),
    (Status.RUNNING, Status.RUNNING): frozenset({Verb.CANCEL}),
    (Status.RUNNING, Status.SUCCEEDED): frozenset({Verb.COMPLETE}),
    (Status.RUNNING, Status.FAILED): frozenset({Verb.FAIL}),
    (Status.RUNNING, Status.RETRY): frozenset({Verb.FAIL, Verb.RELEASE, Verb.EXPIRE, Verb.REVOKE}),
    (Status.RUNNING, Status.DEAD_LETTER): frozenset({Verb.FAIL, Verb.RELEASE, Verb.EXPIRE, Verb.REVOKE}),
    (Status.RUNNING, Status.QUEUED): frozenset({Verb.RELEASE}),
    (Status.RUNNING, Status.WAITING_FOR_APPROVAL): frozenset({Verb.REQUEST_APPROVAL}),
    (Status.RUNNING, Status.CANCELLED): frozenset(
        {Verb.CANCEL_ACK, Verb.CANCEL, Verb.FAIL, Verb.RELEASE, Verb.EXPIRE, Verb.REVOKE}
    ),
    (Status.WAITING_FOR_APPROVAL, Status.QUEUED): frozenset({Verb.DECIDE}),
    (Status.WAITING_FOR_APPROVAL, Status.FAILED): frozenset({Verb.DECIDE, Verb.EXPIRE, Verb.PASS_DEADLINE}),
    (Status.WAITING_FOR_APPROVAL, Status.CANCELLED): frozenset({Verb.CANCEL}),
    # A terminal status is final; an acknowledgement is recorded once and changes nothing else.
    (Status.FAILED, Status.FAILED): frozenset({Verb.ACKNOWLEDGE}),
    (Status.DEAD_LETTER, Status.DEAD_LETTER): frozenset({Verb.ACKNOWLEDGE}),
}


def is_named(verbs: frozenset[Verb]) -> bool:
    """Return whether a database asks for the operation of a transition: only these are ever the sole reason for one."""
    return verbs in (frozenset({Verb.EXCEED_BUDGET}), frozenset({Verb.ACKNOWLEDGE}))


def locate(status: Status, *, run_at: int, now: int, awaits: bool, blocked: bool = False) -> Location:
    """Return the location of a job."""
    match status:
        case Status.RUNNING:
            return Location.IN_PROGRESS
        case Status.DEAD_LETTER:
            return Location.DEAD_LETTER
        case Status.SUCCEEDED | Status.FAILED | Status.CANCELLED:
            return Location.NONE
        case Status.WAITING_FOR_APPROVAL:
            return Location.BLOCKED
        case _ if awaits:
            return Location.BLOCKED
        case _ if run_at > now:
            return Location.DELAYED
        case _:
            return Location.BLOCKED if blocked else Location.READY
