"""JSON as a tree for templates; numbers keep their spelling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

MAX_NODES: Final = 1_500
MAX_TREE_BYTES: Final = 64 * 1024
MAX_PREVIEW_LENGTH: Final = 4_000


class Node(NamedTuple):
    """A value with its name, kind, display text and children."""

    name: str | None
    kind: str
    text: str
    children: tuple[Node, ...] = ()


class Tree(NamedTuple):
    """A whole value with its size; `root` is None if the tree would be too large to display."""

    root: Node | None
    text: str
    size: int

    @property
    def is_cut(self) -> bool:
        return self.root is None


class _Number(str):
    """A number as it was spelled."""


def tree(text: str | None) -> Tree | None:
    """Return the tree of a JSON text, or only the beginning of a large text."""
    if text is None:
        return None
    size = len(text.encode())
    if size > MAX_TREE_BYTES:
        return Tree(None, text[:MAX_PREVIEW_LENGTH], size)
    value = json.loads(text, parse_int=_Number, parse_float=_Number, object_pairs_hook=_Pairs)
    budget = iter(range(MAX_NODES))
    root = _node(None, value, budget)
    if next(budget, None) is None:
        return Tree(None, text[:MAX_PREVIEW_LENGTH], size)
    return Tree(root, text, size)


class _Pairs(list[tuple[str, Any]]):
    """An object as pairs, in their order and with duplicates."""


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
