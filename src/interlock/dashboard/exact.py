"""JSON that is read and written again without a change of its values: numbers keep their own spelling."""

from __future__ import annotations

import json
from typing import Any

MOST_DIGITS = 1000


class Exact(float):
    """A number that is written as it was read."""

    text: str

    def __new__(cls, text: str) -> Exact:
        self = super().__new__(cls, text)
        self.text = text
        return self


def read(text: str) -> Any:
    return json.loads(text, parse_float=Exact, parse_int=_whole)


def written(value: Any, newline: str = "\n") -> str:
    """The JSON text of a value, a line for each part."""
    further = newline + "  "
    match value:
        case dict() if value:
            parts = [f"{json.dumps(key, ensure_ascii=False)}: {written(part, further)}" for key, part in value.items()]
            return f"{{{further}{f',{further}'.join(parts)}{newline}}}"
        case list() if value:
            return f"[{further}{f',{further}'.join(written(part, further) for part in value)}{newline}]"
        case Exact():
            return value.text
    return json.dumps(value, ensure_ascii=False)


def _whole(digits: str) -> int | float:
    return Exact(digits) if digits == "-0" or len(digits) > MOST_DIGITS else int(digits)
