"""JSON decoding and encoding that keeps the spelling of numbers."""

from __future__ import annotations

import json
from typing import Any

MAX_DIGITS = 1000


class LosslessNumber(float):
    """A number that is encoded as it was decoded."""

    text: str

    def __new__(cls, text: str) -> LosslessNumber:
        self = super().__new__(cls, text)
        self.text = text
        return self


def decode(text: str) -> Any:
    return json.loads(text, parse_float=LosslessNumber, parse_int=_integer)


def encode(value: Any, newline: str = "\n") -> str:
    """Return the indented JSON text of a value."""
    indent = newline + "  "
    match value:
        case dict() if value:
            parts = [f"{json.dumps(key, ensure_ascii=False)}: {encode(part, indent)}" for key, part in value.items()]
            return f"{{{indent}{f',{indent}'.join(parts)}{newline}}}"
        case list() if value:
            return f"[{indent}{f',{indent}'.join(encode(part, indent) for part in value)}{newline}]"
        case LosslessNumber():
            return value.text
    return json.dumps(value, ensure_ascii=False)


def _integer(digits: str) -> int | float:
    return LosslessNumber(digits) if digits == "-0" or len(digits) > MAX_DIGITS else int(digits)
