"""Messages in the model: the inbox of each job, and the wait of a released job for a name."""

from __future__ import annotations

from abc import ABC, abstractmethod

from interlock.domain.job import MAX_DELAY_SECONDS, Receipt
from interlock.domain.lifecycle import Status, Verb
from interlock.domain.message import AwaitMessage, SendMessage
from tests.model.job_model import ENDED, Facts, JobModel, Jobs, micros


class MessagesModel(Jobs, ABC):
    """Messages to one job each; topics are in the model of the verbs."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[str, tuple[int, AwaitMessage]] = {}  # the fence of the run that was released, and for what

    def send(self, order: SendMessage, now: int) -> tuple[int, bool] | str:
        """The number of the message and whether it is new, or the code of an error."""
        life = self.jobs.get(order.id)
        if life is None:
            return "not_found"
        inbox = self.inbox[order.id]
        for seq, known in enumerate(inbox, 1):
            if known.message_id == order.message_id:
                same = (known.name, known.payload) == (order.name, order.payload)
                return (seq, False) if same else "message_conflict"
        if life.status in ENDED:
            return "already_finished"
        inbox.append(order)
        fence, wanted = self.waits.get(order.id, (0, AwaitMessage("")))
        waits = life.status == Status.QUEUED and life.fence == fence and life.run_at > now
        if waits and wanted.name == order.name and len(inbox) > wanted.after:
            del self.waits[order.id]
            life.run_at = now
            facts = {"message": len(inbox), "run_at": now}
            self._move(life, Status.QUEUED, Verb.SEND_MESSAGE, order.actor, now, None, facts)
        return len(inbox), True

    def due_after_wait(self, life: JobModel, wanted: AwaitMessage, run_at: int | None, now: int) -> int:
        """Begin a wait, and return when it ends without a message; now, if the message is there."""
        if any(sent.name == wanted.name for sent in self.inbox[life.id][wanted.after :]):
            return now
        self.waits[life.id] = life.fence, wanted
        return now + micros(MAX_DELAY_SECONDS) if run_at is None else run_at

    @abstractmethod
    def _move(
        self,
        life: JobModel,
        status: Status,
        verb: Verb,
        actor: str,
        now: int,
        reason: str | None = None,
        facts: Facts | None = None,
    ) -> Receipt: ...
