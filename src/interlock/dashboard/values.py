"""JSON as a tree that a template can walk; every number is shown as it was written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MOST_NODES: Final = 1_500
LONGEST_SHOWN: Final = 64 * 1024
LONGEST_TEXT: Final = 4_000


class Node(NamedTuple):
    """A value with its name; `kind` is what it is, `text` how it reads, `children` what is inside."""

    name: str | None
    kind: str
    text: str
    children: tuple[Node, ...] = ()


class Tree(NamedTuple):
    """A whole value: its tree if that is small enough to be looked at, and its size."""

    root: Node | None
    text: str
    size: int

    @property
    def is_cut(self) -> bool:
        return self.root is None


class _Number(str):
    """A number in its own spelling."""


def tree(text: str | None) -> Tree | None:
    """A JSON text for people; a large one only by its beginning."""
    if text is None:
        return None
    size = len(text.encode())
    if size > LONGEST_SHOWN:
        return Tree(None, text[:LONGEST_TEXT], size)
    value = json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Pairs)
    budget = iter(range(MOST_NODES))
    root = _node(None, value, budget)
    if next(budget, None) is None:
        return Tree(None, text[:LONGEST_TEXT], size)
    return Tree(root, text, size)


class _Pairs(list[tuple[str, Any]]):
    """An object with its names in the order they came."""


def _node(name: str | None, value: Any, budget: Iterator[int]) -> Node:
    if next(budget, None) is None:
        return Node(name, "null", "…")
    match value:
        case _Pairs():
            inside = tuple(_node(key, item, budget) for key, item in value)
            return Node(name, "object", f"{len(value)} field{'s' * (len(value) != 1)}", inside)
        case list():
            inside = tuple(_node(str(i), item, budget) for i, item in enumerate(value))
            return Node(name, "array", f"{len(value)} item{'s' * (len(value) != 1)}", inside)
        case _Number():
            return Node(name, "number", str(value))
        case str():
            return Node(name, "string", value)
        case _:
            return Node(name, "null", json.dumps(value))
