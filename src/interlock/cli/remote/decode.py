"""Decoding of server responses into the values that commands print; JSON of users keeps its exact bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, get_type_hints

import msgspec
from msgspec import Raw

from interlock.client.http.decode import micros, read
from interlock.domain.approval import Approval, Vote
from interlock.domain.artifact import Artifact
from interlock.domain.explain import Reason, ReasonCode, Why
from interlock.domain.operator_log import LogRow
from interlock.domain.policy import ClaimFilter
from interlock.domain.registry import Agent, Defaults, JobType
from interlock.domain.token import Token
from interlock.domain.webhook import Delivery, Subscription
from interlock.domain.worker_presence import Presence
from interlock.errors import Error
from interlock.wire.job import text

T = TypeVar("T")
Members = Mapping[str, Raw]
NULL = Raw(b"null")


def members(body: bytes | Raw) -> Members:
    """The parts of an object, each as it came."""
    return read(body, dict[str, Raw])


def filled(kind: type[T], body: bytes | Raw, *, json: Sequence[str] = (), **given: object) -> T:
    """A value by the names of its fields: times as micros, those in `json` as text, those given as they are."""
    fields = members(body)
    hints = get_type_hints(kind)
    try:
        return kind(
            **{name: given[name] if name in given else _part(fields, name, hints[name], json) for name in hints}
        )
    except msgspec.MsgspecError as error:
        raise Error(f"cannot decode the response of the server: {error}") from None


def approval(body: bytes | Raw) -> Approval:
    fields = members(body)
    votes = tuple(_vote(one) for one in read(fields["votes"], list[Raw]))
    return filled(
        Approval, body, json=("details", "schema", "data"), tenant="", fence=0, votes=votes, token_sha256=None,
        link_created_by=read(fields.get("link_minted_by", NULL), str | None),  # type: ignore[arg-type]
        link_created_at=_time(fields.get("link_minted_at", NULL)),
    )  # fmt: skip


def _vote(body: Raw) -> Vote:
    fields = members(body)
    return filled(Vote, body, voter=read(fields["by"], str), at=_time(fields["at"]))


def agent(body: bytes | Raw) -> Agent:
    fields = members(body)
    return filled(Agent, body, defaults=defaults(fields["defaults"], backoff=fields.get("backoff", NULL)))


def job_type(body: bytes | Raw) -> JobType:
    return filled(JobType, body, json=("schema",), defaults=defaults(members(body)["defaults"]))


def defaults(body: Raw, *, backoff: Raw = NULL) -> Defaults:
    fields = members(body)
    return filled(Defaults, body, backoff=text(fields.get("backoff", backoff)))


def token(body: bytes | Raw) -> Token:
    return filled(Token, body)


def subscription(body: bytes | Raw) -> Subscription:
    return filled(Subscription, body)


def delivery(body: bytes | Raw) -> Delivery:
    return filled(Delivery, body)


def artifact(body: bytes | Raw) -> Artifact:
    digest: str | None = read(members(body).get("sha256", NULL), str | None)  # type: ignore[arg-type]
    found = filled(
        Artifact, body, fence=0, worker="", key=None, sha256=None if digest is None else bytes.fromhex(digest)
    )  # fmt: skip
    return found if digest is None else found._replace(url=None)


def presence(body: bytes | Raw) -> Presence:
    fields = members(body)
    name = read(fields["name"], str)
    asks = tuple(_ask(name, one) for one in read(fields["asks"], list[dict[str, list[str] | None]]))
    return filled(Presence, body, asks=asks, job_ids=read(fields["jobs"], tuple[str, ...]))


def log_row(body: bytes | Raw) -> LogRow:
    fields = members(body)
    details = text(fields["details"])
    return LogRow(
        read(fields["seq"], int),
        read(fields["actor"], str),
        read(fields["action"], str),
        read(fields["object"], str),
        details,
        micros(read(fields["at"], datetime)),
        bytes.fromhex(read(fields["hash"], str)),
    )


def why(body: bytes | Raw) -> Why:
    return Why(_reason(body), tuple(_reason(one) for one in read(members(body)["also"], list[Raw])))


def _reason(body: bytes | Raw) -> Reason:
    fields = members(body)
    return Reason(
        ReasonCode(read(fields["clause"], str)), read(fields["message"], str), read(fields["details"], dict[str, Any])
    )  # fmt: skip


def _ask(worker: str, fields: Mapping[str, list[str] | None]) -> ClaimFilter:
    names = {name: None if some is None else frozenset(some) for name, some in fields.items()}
    return ClaimFilter(
        worker, names.get("types"), names.get("repositories"), names.get("capabilities") or frozenset(),
        names.get("affinity_keys"),
    )  # fmt: skip


def _part(fields: Members, name: str, hint: Any, json: Sequence[str]) -> Any:
    raw = fields.get(name, NULL)
    if name in json:
        return text(raw)
    if name.endswith("_at"):
        return _time(raw)
    return msgspec.json.decode(raw, type=hint)


def _time(raw: Raw) -> int | None:
    at: datetime | None = read(raw, datetime | None)  # type: ignore[arg-type]
    return None if at is None else micros(at)
