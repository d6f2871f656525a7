"""Messages of jobs. A send and a release that waits both lock the job, so no message is missed."""

from __future__ import annotations

from functools import partial
from typing import Final

from interlock.domain.job import Rejected
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.message import (
    MAX_MESSAGES,
    MAX_RETAIN_SECONDS,
    AwaitMessage,
    Message,
    Publish,
    Published,
    SendMessage,
    Sent,
    wake,
)
from interlock.domain.retry import SECOND
from interlock.domain.transition import JobState
from interlock.errors import AlreadyFinished, LimitReached, MessageConflict, NotFound, TopicConflict
from interlock.storage.dialect import Database, Steps, Transaction, columns, reader, statements

SQL: Final = statements("messages", message=columns(Message, "m."))
MAX_RELATIVES: Final = 10_000  # jobs of a tree that are looked at
FIRST: Final = "00000000-0000-0000-0000-000000000000"  # an ID below all
BATCH_SIZE: Final = 500  # jobs that a message to a topic reaches in one transaction
_message: Final = reader(Message)


class Messages:
    """Stores messages; see the contract."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def send(self, tenant: str, order: SendMessage) -> Sent | Rejected:
        def body(tx: Transaction) -> Steps[Sent | Rejected]:
            job = (yield from tx.lock_jobs([order.id])).get(order.id)
            if job is None:
                return Rejected(NotFound(order.id))
            row = yield from tx.one(SQL["by_id"], job_id=order.id, id=order.message_id)
            if row is not None:
                first = _message(row)
                if (first.name, first.payload) != (order.name, order.payload):
                    return Rejected(MessageConflict(order.id, order.message_id))
                return Sent(first, False)
            if job.status in TERMINAL:
                return Rejected(AlreadyFinished(order.id, f"it has ended as {job.status}"))
            seq = 1 + (yield from _last_seq(tx, order.id))
            if seq > MAX_MESSAGES:
                return Rejected(LimitReached(order.id, "messages", MAX_MESSAGES))
            message = Message(seq, order.message_id, order.name, None, order.payload, order.actor, tx.now)
            yield from tx.run(SQL["add"], job_id=order.id, **message._asdict())
            if _is_waiting(job, job.fence, tx.now):
                waits = yield from tx.one(
                    SQL["waits"], job_id=order.id, fence=job.fence, name=order.name, seq=seq
                )  # fmt: skip
                if waits is not None:
                    yield from tx.run(SQL["end_wait"], job_id=order.id)
                    yield from tx.transition([wake(order.actor, job, seq, tx.now)])
            return Sent(message, True)

        done = await self._database.write(tenant, body, guarded=True)
        if not isinstance(done, Rejected):
            self._database.wake(tenant)
        return done

    async def of_job(
        self, tenant: str, job_id: str, *, name: str | None = None, topic: str | None = None, after: int = 0, limit: int
    ) -> list[Message]:
        facts = {"job_id": job_id, "name": name, "topic": topic, "after": after}
        rows = await self._database.rows(tenant, SQL["list"], limit=limit, **facts)
        return [*map(_message, rows)]

    async def publish(self, tenant: str, order: Publish) -> Published | Rejected:
        known = await self._database.write(tenant, lambda tx: _record(tx, order), guarded=True)
        if isinstance(known, (Published, Rejected)):
            return known
        # In transactions of their own: the lock of the topic must not wait for jobs that begin to wait for the topic.
        after: Published | str = FIRST
        while isinstance(after, str):
            after = await self._database.write(tenant, partial(_deliver, order=order, after=after), guarded=True)
            self._database.wake(tenant)
        return after

    async def has_relative(self, tenant: str, job_id: str, *, actor: str | None, worker: str | None) -> bool:
        instances = None if worker is None else f"{worker}/"
        facts = {"job_id": job_id, "actor": actor, "worker": worker, "instances": instances}
        return bool(await self._database.rows(tenant, SQL["relative"], limit=MAX_RELATIVES, **facts))


def await_message(tx: Transaction, job_id: str, fence: int, wanted: AwaitMessage) -> Steps[bool]:
    """Return whether the message is in the inbox of a locked job; if not, record that the job waits for it.

    The wait counts until the next lease.
    """
    if (yield from _has_arrived(tx, job_id, wanted)):
        return True
    yield from tx.run(
        SQL["wait"], job_id=job_id, fence=fence, name=wanted.name, topic=wanted.topic, after=wanted.after
    )  # fmt: skip
    if wanted.topic is None:
        return False
    yield from tx.rows(SQL["share_topic"], topic=wanted.topic)
    last = yield from _last_seq(tx, job_id)
    kept = yield from tx.rows(SQL["retained"], topic=wanted.topic, job_id=job_id, limit=MAX_MESSAGES - last)
    for seq, (id, payload, sender) in enumerate(kept, last + 1):
        message = Message(seq, id, None, wanted.topic, payload, sender, tx.now)
        yield from tx.run(SQL["add"], job_id=job_id, **message._asdict())
    return (yield from _has_arrived(tx, job_id, wanted))


def _has_arrived(tx: Transaction, job_id: str, wanted: AwaitMessage) -> Steps[bool]:
    about = {"name": wanted.name} if wanted.topic is None else {"topic": wanted.topic}
    statement = SQL["arrived" if wanted.topic is None else "arrived_of_topic"]
    return (yield from tx.one(statement, job_id=job_id, after=wanted.after, **about)) is not None


def _last_seq(tx: Transaction, job_id: str) -> Steps[int]:
    last = yield from tx.one(SQL["last"], job_id=job_id)
    return int(last[0]) if last else 0


def _record(tx: Transaction, order: Publish) -> Steps[Published | Rejected | None]:
    """Record a message to a topic; return the result of an earlier call with its ID, or None if it is to deliver."""
    yield from tx.rows(SQL["lock_topic"], topic=order.topic)
    known = yield from tx.one(SQL["published"], topic=order.topic, id=order.message_id)
    if known is not None:
        payload, delivered = known
        if payload != order.payload:
            return Rejected(TopicConflict(order.topic, order.message_id))
        return None if delivered is None else Published(order.message_id, delivered, is_new=False)
    yield from tx.run(SQL["forget_old"], before=tx.now - MAX_RETAIN_SECONDS * SECOND)
    expires_at = tx.now + round(order.retain_seconds * SECOND) if order.retain_seconds else None
    yield from tx.run(
        SQL["publish"], topic=order.topic, id=order.message_id, payload=order.payload, sender=order.actor,
        expires_at=expires_at,
    )  # fmt: skip
    return None


def _deliver(tx: Transaction, order: Publish, after: str) -> Steps[Published | str]:
    """Deliver a message to some of the jobs that wait for its topic, and make them due.

    Return the last job, after which to continue, or the result. A concurrent call with the same ID helps, and gets the
    same result.
    """
    row = yield from tx.one(SQL["lock_published"], topic=order.topic, id=order.message_id)
    delivered, reached = row or (None, 0)
    if delivered is not None:
        return Published(order.message_id, delivered, is_new=False)
    waiting = yield from tx.rows(
        SQL["waiting_for_topic"], topic=order.topic, id=order.message_id, after_job=after, limit=BATCH_SIZE
    )  # fmt: skip
    waits = {job_id: (fence, seq) for job_id, fence, seq in waiting}
    jobs = yield from tx.lock_jobs(list(waits))
    changes = []
    for job_id, job in jobs.items():
        fence, after_seq = waits[job_id]
        seq = 1 + (yield from _last_seq(tx, job_id))
        if not _is_waiting(job, fence, tx.now) or seq > MAX_MESSAGES:
            continue
        message = Message(seq, order.message_id, None, order.topic, order.payload, order.actor, tx.now)
        yield from tx.run(SQL["add"], job_id=job_id, **message._asdict())
        reached += 1
        if after_seq < seq:
            yield from tx.run(SQL["end_wait"], job_id=job_id)
            changes.append(wake(order.actor, job, seq, tx.now))
    yield from tx.transition(changes)
    is_last = len(waiting) < BATCH_SIZE
    yield from tx.run(
        SQL["delivered"], topic=order.topic, id=order.message_id, reached=reached,
        delivered=reached if is_last else None,
    )  # fmt: skip
    return Published(order.message_id, reached) if is_last else waiting[-1][0]


def _is_waiting(job: JobState, fence: int, now: int) -> bool:
    return job.status is Status.QUEUED and job.fence == fence and job.run_at > now
