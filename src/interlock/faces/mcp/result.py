"""A response of the native API as the result of a tool, with few bytes for the model that reads it."""

from __future__ import annotations

from typing import Final

import msgspec
from mcp import types

from interlock.faces.mcp.api_client import ApiResponse

# JSON that users wrote: nulls in it mean something, and its numbers are kept to the letter.
OPAQUE: Final = frozenset(
    {"payload", "result", "checkpoint", "details", "data", "schema", "metadata", "usage", "headers"}
)
# Members of jobs with the value that most of them have.
USUAL: Final = {
    "tags": b"[]", "requires": b"[]", "steps": b"[]", "sanitized": b"false", "releases": b"0",
    "retry_count": b"0",
}  # fmt: skip
_NULL: Final = b"null"
_MEMBERS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ITEMS: Final = msgspec.json.Decoder(list[msgspec.Raw])


def compact(body: bytes) -> bytes:
    """The same document without null members and usual values, except inside of what users wrote."""
    text = body.strip()
    if text.startswith(b"{"):
        return b"{" + b",".join(_kept(_MEMBERS.decode(text))) + b"}"
    if text.startswith(b"["):
        return b"[" + b",".join(compact(bytes(item)) for item in _ITEMS.decode(text)) + b"]"
    return text


def _kept(members: dict[str, msgspec.Raw]) -> list[bytes]:
    parts: list[bytes] = []
    for name, raw in members.items():
        value = bytes(raw)
        if value == _NULL and name != "payload":  # a payload may be null; it is what the worker gets
            continue
        if USUAL.get(name) == value:
            continue
        parts.append(msgspec.json.encode(name) + b":" + (value if name in OPAQUE else compact(value)))
    return parts


def result_of(reply: ApiResponse, *, is_error: bool | None = None) -> types.CallToolResult:
    """The response as text, once; a rejection is for the model to read, so it is a result too.

    Without structured content, which repeats the text: clients of every version read text.
    """
    content = types.TextContent(type="text", text=compact(reply.body).decode())
    return types.CallToolResult(content=[content], is_error=reply.is_refusal if is_error is None else is_error)
