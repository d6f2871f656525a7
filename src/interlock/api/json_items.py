"""Items of a JSON array, split without judging them: each is checked later, on its own."""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers stay text, so that their size does not matter here.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def split(raw: bytes, field: str) -> tuple[dict[str, Any], bool]:
    """The members of an object with the items of `field` as raw JSON, and whether the array was sent alone.

    Raises ValueError if the brackets around the items cannot be read.
    """
    text = raw.decode(errors="surrogateescape")
    start = _skip(text, 0)
    try:
        if text[start : start + 1] == "[":
            items, end = _array(text, start)
            members: dict[str, Any] = {field: items}
        else:
            members, end = _object(text, start, field)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _skip(text, end) != len(text):
        raise ValueError("there is text after it")
    return members, text[start : start + 1] == "["


def _object(text: str, start: int, field: str) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    place = _expect(text, start, "{")
    if text[place : place + 1] == "}":
        return members, place + 1
    while True:
        name, place = _DECODER.raw_decode(text, place)
        place = _expect(text, place, ":")
        if not isinstance(name, str):
            raise ValueError("a name is not a string")
        if name == field and text[place : place + 1] == "[":
            members[name], place = _array(text, place)
        else:
            end = _DECODER.raw_decode(text, place)[1]
            members[name], place = msgspec.json.decode(_bytes(text[place:end])), end
        place = _skip(text, place)
        if text[place : place + 1] == "}":
            return members, place + 1
        place = _expect(text, place, ",")


def _array(text: str, start: int) -> tuple[list[msgspec.Raw], int]:
    items: list[msgspec.Raw] = []
    place = _expect(text, start, "[")
    if text[place : place + 1] == "]":
        return items, place + 1
    while True:
        end = _DECODER.raw_decode(text, place)[1]
        items.append(msgspec.Raw(_bytes(text[place:end])))
        place = _skip(text, end)
        if text[place : place + 1] == "]":
            return items, place + 1
        place = _expect(text, place, ",")


def _expect(text: str, place: int, mark: str) -> int:
    """The place after a mark and the space around it."""
    place = _skip(text, place)
    if text[place : place + 1] != mark:
        raise ValueError(f"expected {mark!r} at character {place}")
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
