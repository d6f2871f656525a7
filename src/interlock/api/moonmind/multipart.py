"""Parser of multipart forms with files (RFC 7578)."""

from __future__ import annotations

from email.message import Message
from typing import Final, NamedTuple

from interlock.errors import Malformed

MAX_PARTS: Final = 20
MAX_HEAD_BYTES: Final = 2 * 1024  # the library takes quadratic time for long ones


class Part(NamedTuple):
    """One field of a form; a file also has a content type."""

    content: bytes
    content_type: str | None

    def text(self) -> str:
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            raise Malformed("a field of the form is not UTF-8") from None


def parts(content_type: str | None, body: bytes) -> dict[str, Part]:
    """The fields of a form by name; a repeated name is rejected."""
    boundary = _boundary(content_type)
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 1)
    if len(pieces) < 3 or len(pieces) > MAX_PARTS + 1 or not pieces[-1].startswith(b"--"):
        raise Malformed("the form is incomplete or has too many fields")
    found: dict[str, Part] = {}
    for piece in pieces[1:-1]:
        head, blank, content = piece.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name, kind = _heading(head)
        if not blank or name is None or name in found:
            raise Malformed("a field of the form has no name or no content, or is repeated")
        found[name] = Part(content, kind)
    return found


def _boundary(content_type: str | None) -> bytes:
    if content_type is None or len(content_type) > MAX_HEAD_BYTES:
        raise Malformed("the body must be multipart/form-data with a boundary")
    heading = Message()
    heading["content-type"] = content_type
    boundary = _parameter(heading, "boundary", "content-type")
    if heading.get_content_type() != "multipart/form-data" or boundary is None:
        raise Malformed("the body must be multipart/form-data with a boundary")
    return boundary.encode("latin-1", errors="replace")


def _heading(head: bytes) -> tuple[str | None, str | None]:
    """Name and content type of a part."""
    if len(head) > MAX_HEAD_BYTES:
        raise Malformed("the headers of a field are too long")
    heading = Message()
    for line in head.split(b"\r\n"):
        field, colon, value = line.decode(errors="replace").partition(":")
        if colon and field.lower() not in heading:
            heading[field] = value.strip()
    return _parameter(heading, "name", "content-disposition"), heading.get("content-type")


def _parameter(heading: Message, name: str, header: str) -> str | None:
    """A parameter of a header; the library fails on some continuations of RFC 2231."""
    try:
        value = heading.get_param(name, header=header)
    except (TypeError, ValueError, LookupError, AttributeError):
        raise Malformed(f"the header {header} cannot be read") from None
    return value if isinstance(value, str) and value else None
