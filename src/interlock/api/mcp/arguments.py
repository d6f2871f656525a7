"""The arguments of a tool as the text they came in, so that the native API judges what was sent, byte for byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from interlock.domain.json_text import after_space, sanitize_text
from interlock.domain.json_text import members as members_of
from interlock.errors import Invalid, Malformed

SEAL: Final = "interlock"
CALL: Final = "tools/call"
CANCELLED: Final = "notifications/cancelled"
_READER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)

Fields = dict[str, str]  # JSON text by name


class Message(NamedTuple):
    """A message of a client, parsed as far as needed before the library handles it."""

    text: str  # for the library, which would round large numbers and fail on invalid Unicode
    method: str | None = None
    id: str | None = None  # JSON text
    cancels: str | None = None  # the ID of the cancelled request


def message(text: str) -> Message:
    """Parse a client message and seal the arguments of a call. Anything but a single message is left to the library."""
    try:
        given = members(text)
        method = json.loads(given.get("method", "null"))
        if method == CANCELLED:
            return Message(text, method, cancels=members(given["params"]).get("requestId"))
        if method != CALL:
            return Message(text, method if isinstance(method, str) else None, given.get("id"))
        params = members(given["params"])
        if "arguments" in params and params["arguments"].startswith("{"):
            params["arguments"] = json.dumps({SEAL: params["arguments"]})
        return Message(together(given | {"params": together(params)}), method, given.get("id"))
    except (ValueError, KeyError, RecursionError, Malformed):
        return Message(text)


def unsealed(arguments: Mapping[str, Any] | None) -> Fields:
    """The arguments of a call by name, as they were sent."""
    given = arguments or {}
    sealed = given.get(SEAL)
    text = sealed if len(given) == 1 and isinstance(sealed, str) else json.dumps(given)
    try:
        return members(text)
    except (ValueError, RecursionError):
        raise Malformed("the arguments are not a JSON object that can be read") from None


def together(fields: Mapping[str, str]) -> str:
    """An object of the texts of its members."""
    return "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items()) + "}"


def members(text: str) -> Fields:
    """Return the text of every member of an object; reject duplicate names."""
    _, end = _READER.raw_decode(text, after_space(text, 0))
    if after_space(text, end) != len(text):
        raise ValueError("there is more than one value")
    found: Fields = {}
    for name, value in members_of(text):
        if name in found:
            raise Malformed(f"arguments have a duplicate key at /{json.dumps(name)[1:-1]}", pointer=f"/{name}")
        found[name] = value
    return found


def scalar(fields: Fields, name: str) -> str | None:
    """A plain value as text; None where it was not given or is null."""
    texts = scalars(fields, name)
    if len(texts) > 1:
        raise Invalid(f"{name} must be one value", pointer=f"/{name}")
    return texts[0] if texts else None


def path_part(fields: Fields, name: str) -> str:
    """Return a path parameter; reject values that would change the path."""
    value, _ = sanitize_text(scalar(fields, name) or "")
    if not value:
        raise Invalid(f"{name} is missing", pointer=f"/{name}")
    if value in (".", "..") or "\x00" in value:
        raise Invalid(f"{name} cannot be {json.dumps(value)}", pointer=f"/{name}")
    return value


def scalars(fields: Fields, name: str) -> list[str]:
    """A plain value or a list of such, as text, for a place where there is room for nothing else."""
    value = _READER.decode(fields.get(name, "null"))
    found = value if isinstance(value, list) else [] if value is None else [value]
    if any(isinstance(one, (dict, list)) or one is None for one in found):
        raise Invalid(f"{name} must be a plain value", pointer=f"/{name}")
    return [json.dumps(one) if isinstance(one, bool) else str(one) for one in found]
