"""Messages: the inbox of a job, and the wait of a job for the next message of a name."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain.lifecycle import Status, Verb
from interlock.domain.transition import JobState, Transition, transition

MAX_MESSAGES: Final = 10_000  # of one job
MAX_MESSAGE_BYTES: Final = 256 * 1024
MAX_RETAIN_SECONDS: Final = 7 * 86_400  # of a message to a topic; repeated IDs are recognized for as long


class AwaitMessage(NamedTuple):
    """What a released job waits for: a message of this name, or to this topic, with a higher number."""

    name: str | None
    after: int = 0
    topic: str | None = None

    def to_dict(self) -> dict[str, object]:
        """Return the members that are set."""
        about = {"name": self.name} if self.topic is None else {"topic": self.topic}
        return {**about, "after": self.after}


class SendMessage(NamedTuple):
    """A message to a job. `message_id` makes repeated sends one; the payload is JSON."""

    id: str
    message_id: str
    actor: str
    name: str
    payload: str | None = None


class Message(NamedTuple):
    """A message in the inbox of a job, numbered from 1 in the order of arrival. One to a topic has no name."""

    seq: int
    id: str
    name: str | None
    topic: str | None
    payload: str | None
    sender: str
    at: int


class Sent(NamedTuple):
    """The stored message, and whether this call stored it."""

    message: Message
    is_new: bool


class Publish(NamedTuple):
    """A message to all jobs that wait for a topic, and to those that begin to wait within `retain_seconds`."""

    topic: str
    message_id: str
    actor: str
    payload: str | None = None
    retain_seconds: float = 0.0


class Published(NamedTuple):
    """The ID of a message to a topic, and how many waiting jobs got it. `is_new` is false for a repeated call."""

    id: str
    delivered: int
    is_new: bool = True


def wake(actor: str, job: JobState, seq: int, now: int) -> Transition:
    """Return the transition that makes a waiting job due because its message has arrived."""
    facts = {"message": seq, "run_at": now}
    return transition(job, Status.QUEUED, Verb.SEND_MESSAGE, actor, run_at=now, facts=facts)
