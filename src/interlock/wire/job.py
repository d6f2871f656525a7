"""Conversion between a job and its response body. JSON of a job keeps its exact bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.domain.job import FIELDS, UNLISTED, Job, Kind, job_maker
from interlock.domain.job_tree import Shares, shares_of
from interlock.domain.lifecycle import CLAIMABLE, Location, Status
from interlock.domain.timestamps import when
from interlock.domain.webhook_format import format_of
from interlock.wire import instant, responses

NULL: Final = b"null"


def text(value: Raw) -> str | None:
    """Return the exact JSON text, or None for null."""
    given = bytes(value)
    return None if given == NULL else given.decode()


def _url(webhook: str) -> str:
    return format_of(webhook)[1]


def _limits_only(limits: str) -> Raw | None:
    named = shares_of(limits).limits
    return None if named is None else Raw(named.encode())


# Members that the response has instead of fields of the job, in terms of those fields.
_FORMS: Final = {
    "location": "location",
    "retry_count": "attempt - 1",
    "agent": "None if agent_kind is None else {'kind': agent_kind, 'id': agent_id}",
    "lease": "{'worker': worker, 'fence': fence, 'expires_at': when(lease_expires_at)}"
    " if status is RUNNING and lease_expires_at is not None else None",
    "awaiting": "{'children': awaiting} if awaiting else None if awaiting_message is None"
    " else {'message': Raw(awaiting_message.encode())}",
    "webhook": "None if webhook is None else url(webhook)",
    "limits": "None if limits is None else limits_only(limits)",
    "budgets": "() if limits is None else shares_of(limits).budgets",
    "budget_roots": "() if limits is None else shares_of(limits).budget_roots",
}
_BY_KIND: Final = {Kind.JSON: "Raw({0}.encode())", Kind.TIME: "when({0})"}


def _encoder(body: Any) -> Callable[[Job, Location], tuple[Any, ...]]:
    """Return a function from a job and its location to the values of a body.

    It is compiled, as namedtuple does it: a loop over the fields would add a sixth to the time of encoding a job.
    """
    parts = []
    for name in body.__struct_fields__:
        form = _FORMS.get(name) or _BY_KIND.get(FIELDS[name].kind, "{0}").format(name)
        bare = name in _FORMS or not FIELDS[name].nullable or form == name
        parts.append(form if bare else f"None if {name} is None else {form}")
    scope: dict[str, Any] = {"Raw": Raw, "when": when, "url": _url, "RUNNING": Status.RUNNING}
    scope |= {"limits_only": _limits_only, "shares_of": shares_of}
    exec(
        f"def encode(job, location):\n  {', '.join(Job._fields)} = job\n  return {', '.join(parts)}",
        scope,
    )
    found: Callable[[Job, Location], tuple[Any, ...]] = scope["encode"]
    return found


_encode: Final = _encoder(responses.Job)
_encode_listed: Final = _encoder(responses.ListedJob)


def job_fields(job: Job, *, now: int, listed: bool = False) -> tuple[Any, ...]:
    """Return the values of a response body of a job. The time matters only for a waiting job."""
    if job.awaiting_message is not None and job.run_at <= now:
        job = job._replace(awaiting_message=None)  # the time of the wait is over
    return (_encode_listed if listed else _encode)(job, job.location(now))


def job_to_dict(job: Job, *, now: int) -> dict[str, Any]:
    """Serialize a job as a dictionary that the caller can extend."""
    return dict(zip(responses.Job.__struct_fields__, job_fields(job, now=now), strict=True))


def listed_job_to_dict(job: Job, *, now: int) -> dict[str, Any]:
    """Serialize a job of a list, without the fields that lists do not load: null would mean that they have no value."""
    return dict(zip(responses.ListedJob.__struct_fields__, job_fields(job, now=now, listed=True), strict=True))


class _Reader:
    """Builds jobs from bodies of one class; `unread` has the fields that the class lacks."""

    def __init__(self, body: Any, unread: Mapping[str, object]) -> None:
        names = [name for name in Job._fields if name in body.__struct_fields__ and name not in _FOLDED]
        decoders: dict[Kind, Callable[[Any], object]] = {Kind.JSON: text, Kind.TIME: _micros}
        self._values, self._limits = attrgetter(*names), names.index("limits")
        self._decoders = [(i, decoders[FIELDS[n].kind]) for i, n in enumerate(names) if FIELDS[n].kind in decoders]
        self._make = job_maker((*names, *_FOLDED), unread)

    def job(self, body: Any) -> Job:
        values = list(self._values(body))
        for i, decode in self._decoders:
            if (value := values[i]) is not None:
                values[i] = decode(value)
        if body.budgets or body.budget_roots:
            values[self._limits] = Shares(values[self._limits], body.budgets, body.budget_roots).stored()
        agent, lease = body.agent, body.lease
        return self._make((
            *values,
            *((None, None) if agent is None else (agent.kind, agent.id)),
            # The fence is known only while the job runs, and useful only to the lease holder.
            *((None, 0, None) if lease is None else (lease.worker, lease.fence, _micros(lease.expires_at))),
            body.status in CLAIMABLE and body.location is Location.BLOCKED,
            *_awaited(getattr(body, "awaiting", None)),
        ))  # fmt: skip


def _micros(value: datetime) -> int:
    found = instant(value, "at")
    assert found is not None
    return found


def _awaited(awaiting: responses.Awaiting | None) -> tuple[Sequence[str], str | None]:
    """Return the children and the message that a job waits for."""
    if awaiting is None:
        return (), None
    message = None if awaiting.message is None else msgspec.json.encode(awaiting.message).decode()
    return tuple(awaiting.children or ()), message


_FOLDED: Final = (
    "agent_kind", "agent_id", "worker", "fence", "lease_expires_at", "blocked", "awaiting", "awaiting_message",
)  # fmt: skip
_whole: Final = _Reader(responses.Job, {})
_listed: Final = _Reader(
    responses.ListedJob,
    {name: () if FIELDS[name].kind is Kind.NAMES else None for name in UNLISTED if name not in _FOLDED},
)


def listed_job_of(body: Any) -> Job:
    """Convert an item of a list to a job; fields that lists omit are None."""
    return _listed.job(body)


def job_of(body: Any) -> Job:
    """Convert the body of a job. A null payload or checkpoint is distinct from an absent one."""
    job = _whole.job(body)
    if job.payload is None or (job.checkpoint is None and job.checkpoint_seq is not None):
        checkpoint = None if job.checkpoint_seq is None else bytes(body.checkpoint).decode()
        job = job._replace(payload=bytes(body.payload).decode(), checkpoint=checkpoint)
    return job._replace(blocked=False) if job.awaiting or job.awaiting_message else job
