"""Bodies and queries: read with a size limit and a deadline, validated once as text, then decoded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar, cast, get_args, get_origin
from urllib.parse import parse_qsl

import msgspec

from interlock.api.admission import Seat
from interlock.api.headers import Headers
from interlock.api.problems import Refusal
from interlock.api.routes import Receive
from interlock.domain import json_text
from interlock.errors import Invalid, Malformed, TooLarge

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

MAX_PARAMETERS: Final = 100
_JSON_TYPES: Final = frozenset(
    {"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8",
     'application/json; charset="utf-8"'}
)  # fmt: skip


class Disconnected(Exception):
    """The caller closed the connection, so no response can be sent."""


def check_media_type(headers: Headers) -> None:
    """Accept only uncompressed JSON: a compressed body could expand to any size."""
    refuse_encoded(headers)
    media_type = (headers.get("content-type") or "").strip().lower()
    if media_type not in _JSON_TYPES:
        raise Refusal(
            "unsupported_media_type", "the body must be application/json", headers={"accept": "application/json"}
        )


def refuse_encoded(headers: Headers) -> None:
    if (headers.get("content-encoding") or "identity").strip().lower() != "identity":
        raise Refusal(
            "unsupported_media_type", "a compressed body is not accepted", headers={"accept-encoding": "identity"}
        )


async def read(
    receive: Receive,
    headers: Headers,
    *,
    limit: int,
    within: float,
    seat: Seat,
    whole: bytes | None = None,
) -> bytes:
    """Return the body, reading it if necessary; reject it as soon as it is too large or too slow."""
    reserve(headers, limit, seat)
    if whole is not None:
        if len(whole) > limit:
            raise TooLarge("body", len(whole), limit)
        return whole
    try:
        with seat.arriving():
            async with asyncio.timeout(within):
                return await joined(pieces_of(receive), limit)
    except TimeoutError:
        raise Refusal("request_timeout", f"the body did not arrive within {within:g} s", close=True) from None


def reserve(headers: Headers, limit: int, seat: Seat) -> None:
    """Reserve memory for a body; reject it if its declared length is over the limit."""
    declared = headers.length
    if declared is not None and declared > limit:
        raise TooLarge("body", declared, limit)
    seat.hold(declared if declared is not None else limit)


async def joined(pieces: AsyncIterator[bytes], limit: int) -> bytes:
    """Join the pieces of a body, up to the limit."""
    kept: list[bytes] = []
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > limit:
            raise TooLarge("body", size, limit)
        kept.append(piece)
    return kept[0] if len(kept) == 1 else b"".join(kept)


async def pieces_of(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the pieces of the body as they arrive."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        if piece := message.get("body", b""):
            yield piece
        more = message.get("more_body", False)


def decode(body: bytes, kind: type[T], *, limit: int, sanitizes: bool) -> tuple[T, bool]:
    """Decode the body; also return whether invalid Unicode was replaced. Members typed Raw keep their exact bytes."""
    sanitized = False
    if sanitizes:
        checked, sanitized = json_text.sanitize(body, what="body", limit=limit)
        if sanitized:
            body = checked.encode()
    else:
        json_text.check(body, what="body", limit=limit)
    try:
        return msgspec.json.decode(body, type=kind), sanitized
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    except msgspec.DecodeError as error:
        raise Malformed(f"body is not JSON: {error}") from None


def query(raw: bytes, kind: type[S]) -> S:
    """Decode the query; reject unknown parameters and repeated ones that take a single value."""
    if not raw:
        return cast(S, _unasked(kind))
    try:  # invalid UTF-8 becomes surrogates here and is rejected below, where the parameter is known
        pairs = parse_qsl(
            raw.decode(errors="surrogateescape"), keep_blank_values=True, max_num_fields=MAX_PARAMETERS,
            errors="surrogateescape",
        )  # fmt: skip
    except ValueError:
        raise Invalid(f"too many parameters: the limit is {MAX_PARAMETERS}") from None
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(kind)}
    types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name not in types:
            raise Invalid(f"unknown parameter {name!r}", pointer=_pointer(name))
        if "\x00" in value:
            raise Invalid(f"{name} has a NUL character", pointer=_pointer(name))
        if json_text.sanitize_text(value)[1]:
            raise Invalid(f"{name} is not UTF-8", pointer=_pointer(name))
        if _takes_time(types[name]) and ":" not in value:  # a number would be read as seconds since 1970
            raise Invalid(f"{name} must be a time with an offset, such as 2027-01-31T12:00:00Z", pointer=_pointer(name))
        if _takes_several(types[name]):
            values.setdefault(name, []).append(value)
        elif name in values:
            raise Invalid(f"{name} is repeated: expected one value", pointer=_pointer(name))
        else:
            values[name] = value
    try:
        asked = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None
    for name in values:
        if getattr(asked, fields[name]) is None:  # the text `null` has no meaning here
            raise Invalid(f"{name} has no value", pointer=_pointer(name))
    return asked


@cache
def _takes_several(kind: Any) -> bool:
    return get_origin(kind) is tuple or any(get_origin(one) is tuple for one in get_args(kind))


@cache
def _takes_time(kind: Any) -> bool:
    return datetime in (kind, *get_args(kind))


@cache
def _unasked(kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Return the value of an empty query; queries are frozen, so all requests can share it."""
    try:
        return msgspec.convert({}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from None


def invalid(error: msgspec.ValidationError) -> Invalid:
    """Convert an error of msgspec into one with a JSON pointer to the field."""
    message, _, path = str(error).rpartition(" - at `$")
    if not message:
        message, path = path, ""
    # msgspec names a map entry only as `[...]`, so the pointer ends at the map itself.
    pointer = path.rstrip("`").partition("[...]")[0].replace("[", ".").replace("]", "").replace(".", "/")
    for given in ("unknown field `", "missing required field `"):
        if given in message:
            pointer += _pointer(message.partition(given)[2].rstrip("`"))
    return Invalid(message, pointer=pointer)


def _pointer(name: str) -> str:
    return "/" + name.replace("~", "~0").replace("/", "~1")
