"""Serialization of domain values, shared by the API, the command line and the dashboard. JSON text is not parsed."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Raw

from interlock.domain import timestamps
from interlock.domain.approval import Approval, Vote
from interlock.domain.artifact import Artifact
from interlock.domain.effect import Effect
from interlock.domain.job import HeartbeatReply, HistoryRow, Receipt
from interlock.domain.message import Message
from interlock.domain.operator_log import LogRow
from interlock.domain.progress import EventRow, StepRow
from interlock.domain.registry import Agent, Defaults, JobType, QueueStats
from interlock.domain.stream import Chunk
from interlock.domain.token import Token
from interlock.domain.webhook import Delivery, Subscription
from interlock.domain.worker_presence import Presence, filter_to_dict

R = TypeVar("R")
# Fields that have another name in JSON.
_NAMES: Final = {
    "from_status": "from", "to_status": "to", "sender": "from", "recipients": "to", "voter": "by",
    "link_created_by": "link_minted_by", "link_created_at": "link_minted_at",
}  # fmt: skip


def raw(text: str | None) -> Raw | None:
    """Return stored JSON text as a member of a response."""
    return None if text is None else Raw(text.encode())


def when(micros: int | None) -> str | None:
    """Format a time as RFC 3339 in UTC."""
    return None if micros is None else timestamps.when(micros)


def serializer(
    kind: type[R], *, json: Collection[str] = (), without: Collection[str] = (), **instead: Callable[[R], object]
) -> Callable[[R], dict[str, Any]]:
    """Return a function that serializes a record with its fields, except those of `without`.

    Times become RFC 3339 and hashes hexadecimal; `json` names the fields that hold JSON text. `instead` computes
    members, in place of a field or at the end.
    """
    members: dict[str, Callable[[R], object]] = {
        _NAMES.get(name, name): instead.get(name) or _reader(name, raw if name in json else _conversion(name, hint))
        for name, hint in get_type_hints(kind).items()
        if name not in without
    }
    members |= instead

    def to_dict(record: R) -> dict[str, Any]:
        return {name: read(record) for name, read in members.items()}

    return to_dict


def _reader(name: str, convert: Callable[[Any], object] | None) -> Callable[[Any], object]:
    get = attrgetter(name)
    if convert is None:
        return get

    def read(record: Any) -> object:
        value = get(record)
        return None if value is None else convert(value)

    return read


def _conversion(name: str, hint: Any) -> Callable[[Any], object] | None:
    kinds = get_args(hint) or (hint,)
    if int in kinds and (name == "at" or name.endswith(("_at", "_until"))):
        return timestamps.when
    if bytes in kinds:
        return bytes.hex
    return dict if get_origin(hint) is Mapping else None


def receipt_to_dict(receipt: Receipt) -> dict[str, Any]:
    id, fence, status, attempt, version, run_at, finished_at = receipt
    return {
        "id": id, "fence": fence, "status": status, "attempt": attempt, "version": version,
        "run_at": when(run_at), "finished_at": when(finished_at),
    }  # fmt: skip


def heartbeat_reply_to_dict(reply: HeartbeatReply) -> dict[str, Any]:
    return reply._asdict() | {"lease_expires_at": when(reply.lease_expires_at)}


step_to_dict: Final = serializer(StepRow, json=["result"], without=["job_id"])
event_to_dict: Final = serializer(EventRow, json=["payload"])
effect_to_dict: Final = serializer(Effect, json=["result"])
message_to_dict: Final = serializer(Message, json=["payload"])
history_to_dict: Final = serializer(HistoryRow, json=["metadata"], without=["job_id"])
log_to_dict: Final = serializer(LogRow, json=["details"])
token_to_dict: Final = serializer(Token)
delivery_to_dict: Final = serializer(Delivery)
artifact_to_dict: Final = serializer(
    Artifact,
    without=["fence", "worker", "key"],
    url=lambda one: one.url or f"/v1/jobs/{one.job_id}/artifacts/{one.id}",  # of a file, its download path
)
_vote: Final = serializer(Vote)
approval_to_dict: Final = serializer(
    Approval,
    json=["details", "schema", "data"],
    without=["tenant", "fence", "token_sha256"],
    votes=lambda one: [_vote(vote) for vote in one.votes],
)
# For the worker that resumes the job, without the identity of the approvers.
decision_to_dict: Final = serializer(
    Approval,
    json=["details", "schema", "data"],
    without=[name for name in Approval._fields if name not in (
        "id", "kind", "name", "occurrence", "status", "prompt", "details", "schema", "comment", "data", "digest",
    )],
    decision=lambda one: one.decision,
    decided_at=lambda one: when(one.closed_at),
)  # fmt: skip
worker_to_dict: Final = serializer(
    Presence, without=["job_ids"], asks=lambda seen: [filter_to_dict(ask) for ask in seen.asks],
    jobs=lambda seen: list(seen.job_ids),
)  # fmt: skip


def defaults_to_dict(defaults: Defaults) -> dict[str, Any]:
    """Serialize the fields that are set."""
    given: dict[str, Any] = {name: value for name, value in defaults._asdict().items() if value is not None}
    if defaults.backoff is not None:
        given["backoff"] = raw(defaults.backoff)
    return given


type_to_dict: Final = serializer(JobType, json=["schema"], defaults=lambda type: defaults_to_dict(type.defaults))


def agent_to_dict(agent: Agent) -> dict[str, Any]:
    defaults = defaults_to_dict(agent.defaults)
    backoff = defaults.pop("backoff", None)
    return {
        "kind": agent.kind,
        "id": agent.id,
        "max_concurrency": agent.max_concurrency,
        "strict": agent.strict,
        "backoff": backoff,
        "defaults": defaults,
        "implicit": agent.implicit,
        "created_at": when(agent.created_at),
        "updated_at": when(agent.updated_at),
    }


def chunk_to_dict(chunk: Chunk) -> dict[str, Any]:
    """Serialize a chunk: text as text, other bytes as base64."""
    named = {"offset": chunk.offset, "attempt": chunk.attempt, "fence": chunk.fence}
    data = {"text": chunk.data.decode()} if chunk.is_text else {"base64": b64encode(chunk.data).decode()}
    return named | data | {"at": when(chunk.at)}


def stats_to_dict(stats: QueueStats, *, now: int) -> dict[str, Any]:
    """Serialize queue statistics, with ages in seconds."""
    encoded = stats._asdict()
    oldest = encoded.pop("oldest_ready_at")
    return encoded | {
        "oldest_ready_seconds": None if oldest is None else max(now - oldest, 0) / 1_000_000,
        "paused": stats.paused_at is not None,
        "paused_at": when(stats.paused_at),
    }


_subscription: Final = serializer(Subscription)


def subscription_to_dict(subscription: Subscription, *, now: int) -> dict[str, Any]:
    """Serialize a subscription, without its secret."""
    return _subscription(subscription) | {"active": subscription.is_active(now)}
