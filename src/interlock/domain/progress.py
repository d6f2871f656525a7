"""What a worker leaves behind while a job runs: steps that are not done twice, and events that people read.

Times are whole microseconds since 1970, UTC. Fields named as JSON hold exact JSON text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple, Protocol, Self
from uuid import UUID

from interlock.errors import Invalid, TooLarge

SMALLEST_ID: Final = "00000000-0000-0000-0000-000000000000"  # sorts before every job
LARGEST_NUMBER: Final = 2**63 - 1
LARGEST_OCCURRENCE: Final = 2**31 - 1


class Level(StrEnum):
    """How much an event matters."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


def fitted(message: str, payload: str | None, limit: int) -> str:
    """The message of an event cut to the room that its payload leaves, so that none is lost.

    A message of up to an eighth of the limit is never cut: a payload that leaves too little room for it is too large.
    """
    raw = message.encode(errors="surrogatepass")
    room = limit if payload is None else limit - len(payload.encode())
    if len(raw) <= room:
        return message
    if room < (least := min(len(raw), limit // 8)):
        raise TooLarge("event", limit - room + least, limit)
    return raw[: room - len(_CUT.encode())].decode(errors="ignore") + _CUT


_CUT: Final = "…"


class Step(NamedTuple):
    """The result of a named part of a run, to be kept by the current holder of the job; the first one wins."""

    id: str
    fence: int
    worker: str
    name: str
    occurrence: int
    result: str  # JSON
    function: str | None = None
    sanitized: bool = False


class StepRow(NamedTuple):
    """A step as it was kept; `seq` counts the steps of its job."""

    job_id: str
    seq: int
    name: str
    occurrence: int
    result: str  # JSON
    function: str | None
    fence: int
    at: int
    sanitized: bool


class Event(NamedTuple):
    """A message about the progress of a job; the same id again adds nothing."""

    id: str
    level: Level
    message: str
    payload: str | None = None  # JSON
    sanitized: bool = False
    at: int | None = None  # when the worker recorded it, kept within its lease; None: when it arrives


class Report(NamedTuple):
    """Events told by the current holder of a job."""

    id: str
    fence: int
    worker: str
    events: tuple[Event, ...]


class EventAppend(Protocol):
    """Whatever carries events under a grant: a report or a heartbeat."""

    @property
    def id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str: ...
    @property
    def events(self) -> tuple[Event, ...]: ...


class EventRow(NamedTuple):
    """An event as it was kept; `seq` counts the events of its job, in the order they arrived."""

    job_id: str
    seq: int
    id: str
    level: Level
    message: str
    payload: str | None  # JSON
    at: int  # when the worker recorded it
    received_at: int
    sanitized: bool


class FeedPosition(NamedTuple):
    """A place in the feed of all events of a tenant: everything up to it has been seen.

    `turn` orders the transactions that wrote; `epoch` is raised by a restore, after which turns may start again.
    """

    epoch: int
    commit_seq: int
    job_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.commit_seq}.{self.job_id}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place that a client was given as text; Invalid if it is none of ours."""
        try:
            epoch, commit_seq, job_id, seq = text.split(".")
            position = cls(_number(epoch), _number(commit_seq), str(UUID(job_id)), _number(seq))
        except ValueError:
            raise Invalid(f"{text[:100]!r} is not a place in a feed of events", pointer="/cursor") from None
        return position


class FeedEvent(NamedTuple):
    """One event of the feed and the place to go on from."""

    position: FeedPosition
    event: EventRow


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= LARGEST_NUMBER):
        raise ValueError(digits)
    return int(digits)
