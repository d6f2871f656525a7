"""The differences between the proposed and the decided data of an approval, by member and line."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple

from interlock.dashboard import lossless_json

MAX_LINES: Final = 1_000  # of both texts; the time to compare grows with their product
CONTEXT: Final = 2  # unchanged lines around a change
_ABSENT: Final = object()


class Line(NamedTuple):
    """One line of a difference; `kind` is kept, removed, added or gap."""

    kind: str
    text: str


class Edit(NamedTuple):
    """A member that differs, with its path in the data."""

    name: str
    lines: tuple[Line, ...]


def edits(proposed: str | None, decided: str | None, names: Collection[str]) -> list[Edit]:
    """Return the members of the decided data that differ from the proposed data.

    `names` are the members that the form had, if it had one for each: others were never part of the decided data.
    """
    if proposed is None or decided is None:
        return []
    before, after = lossless_json.decode(proposed), lossless_json.decode(decided)
    if isinstance(before, dict) and names:
        before = {name: value for name, value in before.items() if name in names}
    if type(before) is not type(after):
        return []
    return [Edit(path, tuple(_lines(was, now))) for path, was, now in _changes("", before, after)]


def _changes(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            inside = f"{path}.{name}" if path else name
            yield from _changes(inside, before.get(name, _ABSENT), after.get(name, _ABSENT))
    elif _text(before) != _text(after) or type(before) is not type(after):
        yield path, before, after


def _text(value: Any) -> str:
    """Return the text of a value: a string as it is, unless it could be mistaken for another value."""
    if value is _ABSENT:
        return ""
    return value if isinstance(value, str) else lossless_json.encode(value)


def _lines(before: Any, after: Any) -> Iterator[Line]:
    both_are_text = isinstance(before, str) and isinstance(after, str)
    old, new = (_split(value, as_text=both_are_text) for value in (before, after))
    if len(old) + len(new) > MAX_LINES:
        yield from (Line("removed", line) for line in old)
        yield from (Line("added", line) for line in new)
        return
    steps = SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT)
    for i, group in enumerate(steps):
        if i:
            yield Line("gap", "…")
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (Line("kept", line) for line in old[a:b])
                continue
            yield from (Line("removed", line) for line in old[a:b])
            yield from (Line("added", line) for line in new[c:d])


def _split(value: Any, *, as_text: bool) -> list[str]:
    if value is _ABSENT:
        return []
    text: str = value if as_text else lossless_json.encode(value)
    return text.split("\n")
