"""Progress of a running job: saved steps, whose results a replay reuses, and events.

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
    """The severity of an event."""

    INFO = "info"
    WARN = "warn"
    ERROR = "error"


def fitted(message: str, payload: str | None, limit: int) -> str:
    """Truncate the message of an event to the space that its payload leaves, so that the event is not rejected.

    A message of up to an eighth of the limit is never truncated: the payload is too large if it leaves less space.
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
    """A step result to save, by the lease holder of the job; the first result of a step wins."""

    id: str
    fence: int
    worker: str
    name: str
    occurrence: int
    result: str  # JSON
    function: str | None = None
    sanitized: bool = False


class StepRow(NamedTuple):
    """A saved step; `seq` counts the steps of its job."""

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
    """A progress message of a job; a repeated `id` is ignored."""

    id: str
    level: Level
    message: str
    payload: str | None = None  # JSON
    sanitized: bool = False
    at: int | None = None  # when the worker recorded it, clamped to its lease; None: when it arrives


class Report(NamedTuple):
    """Events to append, from the lease holder of a job."""

    id: str
    fence: int
    worker: str
    events: tuple[Event, ...]


class EventAppend(Protocol):
    """A request of a lease holder that carries events: a report or a heartbeat."""

    @property
    def id(self) -> str: ...
    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str: ...
    @property
    def events(self) -> tuple[Event, ...]: ...


class EventRow(NamedTuple):
    """A stored event; `seq` counts the events of its job in order of arrival."""

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
    """A position in the event feed of a tenant: the reader has received everything up to it.

    `commit_seq` orders the transactions that wrote events. A restore may reset it, and therefore raises `epoch`.
    """

    epoch: int
    commit_seq: int
    job_id: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.commit_seq}.{self.job_id}.{self.seq}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a feed position that a client received as text, or raise Invalid."""
        try:
            epoch, commit_seq, job_id, seq = text.split(".")
            position = cls(_number(epoch), _number(commit_seq), str(UUID(job_id)), _number(seq))
        except ValueError:
            raise Invalid(f"{text[:100]!r} is not a feed position", pointer="/cursor") from None
        return position


class FeedEvent(NamedTuple):
    """One event of the feed and the position to continue from."""

    position: FeedPosition
    event: EventRow


def _number(digits: str) -> int:
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) <= LARGEST_NUMBER):
        raise ValueError(digits)
    return int(digits)
