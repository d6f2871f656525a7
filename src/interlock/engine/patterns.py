"""Cost bound of a regular expression per byte of input, computed from the pattern alone.

The engine of jsonschema-rs takes linear time: for each byte it advances every part of the pattern that the text so far
may have reached. This module bounds how many parts that can be: for `^[a-z]{1,63}$` one and its neighbors, for
`.{0,3000}z` all 3,001, since a match can begin anywhere.
"""

from __future__ import annotations

import math
import re
from functools import reduce
from operator import mul
from typing import Final, NamedTuple

_COUNTED: Final = re.compile(r"\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}")
_GROUP: Final = re.compile(r"\(\?(?:P?<[^>=!]*>|([a-zA-Z-]*)([:)]))")
_BRACED_ESCAPE: Final = re.compile(r"\\(?:[pP]\{[^}]*\}|[xuU]\{[0-9a-fA-F]+\}|b\{[a-z-]+\})")
_CLASS: Final = re.compile(r"\[(?:\\.|[^\]\\])*\]", re.DOTALL)
_NUMBER: Final = re.compile(r"\d+")
_NO_WIDTH: Final = frozenset("bBAz")
DEEPEST: Final = 100


class _Part(NamedTuple):
    """A part of a pattern."""

    size: float
    """With all repetitions written out."""
    low: float
    """The length of the shortest text that it matches."""
    high: float
    active: float
    """The number of states that can be active together when it is entered at one position."""
    anchored: bool = False
    """Whether it matches only at the start of a text."""


class _Unclear(Exception):
    """Syntax that this module does not parse."""


def work(pattern: str) -> float:
    """Return the maximum number of parts of the pattern that can be active at the same time."""
    try:
        whole = _Reader(pattern).all()
    except _Unclear:
        return len(pattern) * reduce(mul, (max(float(n[:9]), 1.0) for n in _NUMBER.findall(pattern)[:30]), 1.0)
    return whole.active if whole.anchored else whole.size


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._multiline = False

    def all(self) -> _Part:
        whole = self._alternatives()
        if self._at < len(self._pattern):
            raise _Unclear
        return whole._replace(anchored=whole.anchored and not self._multiline)

    def _alternatives(self) -> _Part:
        choices = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            choices.append(self._sequence())
        if len(choices) == 1:
            return choices[0]
        return _Part(
            1 + sum(c.size for c in choices),
            min(c.low for c in choices),
            max(c.high for c in choices),
            1 + sum(c.active for c in choices),
            all(c.anchored for c in choices),
        )

    def _sequence(self) -> _Part:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        return _joined(parts)

    def _atom(self) -> _Part:
        start = self._pattern[self._at]
        if start == "(":
            return self._group()
        found = None
        if start == "[":
            found = _CLASS.match(self._pattern, self._at)
        elif start == "\\":
            found = _BRACED_ESCAPE.match(self._pattern, self._at)
            if found is None:
                following = self._pattern[self._at + 1 : self._at + 2]
                self._at += 2
                return _Part(1, 0, 0, 1) if following in _NO_WIDTH else _Part(1, 1, 1, 1)
        self._at = self._at + 1 if found is None else found.end()
        if start in "^$":
            return _Part(1, 0, 0, 1, start == "^")
        if found is not None and found[0].startswith("\\b"):
            return _Part(1, 0, 0, 1)
        return _Part(1, 1, 1, 1)

    def _group(self) -> _Part:
        opening = _GROUP.match(self._pattern, self._at)
        if opening is not None:
            flags = (opening[1] or "").replace("u", "")
            if "x" in flags or len(flags) > 8:
                raise _Unclear
            self._multiline = self._multiline or "m" in flags
            self._at = opening.end()
            if opening[2] == ")":
                return _Part(1, 0, 0, 1)
        elif self._pattern.startswith("(?", self._at):
            raise _Unclear
        else:
            self._at += 1
        self._depth += 1
        if self._depth > DEEPEST:
            raise _Unclear
        within = self._alternatives()
        self._depth -= 1
        if self._peek() != ")":
            raise _Unclear
        self._at += 1
        return within._replace(size=within.size + 1, active=within.active + (within.low == 0))

    def _repeated(self, part: _Part) -> _Part:
        while True:
            least, most = 0.0, 0.0
            sign = self._peek()
            if sign in ("*", "+", "?") and sign:
                least, most = float(sign == "+"), 1.0 if sign == "?" else math.inf
                self._at += 1
            elif sign == "{" and (found := _COUNTED.match(self._pattern, self._at)):
                first, comma, second = found.groups()
                least = float(first[:9] or 0)
                most = float(second[:9]) if second else (math.inf if comma else least)
                self._at = found.end()
            else:
                return part
            part = _times(part, least, most)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]


def _times(part: _Part, least: float, most: float) -> _Part:
    copies = max(least, 1.0) if math.isinf(most) else max(most, least, 1.0)
    size = 1 + part.size * copies
    low, high = part.low * least, (part.high * most if part.high and most else 0.0)
    # Copies of a fixed-length part end where the next begins, so only one of them is active at a time.
    steady = part.low == part.high > 0
    return _Part(size, low, high, min(size, 1 + part.active) if steady else size)


def _joined(parts: list[_Part]) -> _Part:
    """Concatenate parts: after one of varying length, a part can be entered at several positions."""
    size = low = high = active = 0.0
    positions = 1.0
    run_size = run_active = 0.0
    for part in parts:
        size, low, high = size + part.size, low + part.low, high + part.high
        if part.low == part.high:
            run_size, run_active = run_size + part.size, max(run_active, part.active)
            continue
        active += min(run_size, positions * run_active) if run_size else 0
        run_size = run_active = 0.0
        active += min(part.size, positions * part.active)
        positions += part.high - part.low
    active += min(run_size, positions * run_active) if run_size else 0
    return _Part(size, low, high, max(active, 1.0), bool(parts) and parts[0].anchored)
