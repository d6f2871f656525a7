"""How much work a JSON Schema makes: its parts may refer to each other in ways that hardly come to an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote

from interlock.errors import Invalid

MOST_PARTS: Final = 200
DEEPEST: Final = 200

_LISTS: Final = ("allOf", "anyOf", "oneOf")
_ONES: Final = ("not", "if", "then", "else")
_MAPS: Final = ("dependentSchemas", "dependencies")
_OF_VALUES: Final = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS: Final = ("additionalItems", "unevaluatedItems", "contains")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


class Effort:
    """What a schema may cost, told before anything is spent."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._anchors: dict[str, Any] | None = None
        self._parts: dict[int, int | None] = {}
        self._in_place: dict[int, list[Any]] = {}
        count = self._count(root, 0)
        self.parts = count if count is not None and count <= MOST_PARTS else None
        """How many rules there are with every reference written out; None if many, or without end."""

    def rules(self, value: Any, most: int) -> int:
        """How many rules are applied to a value and all it holds, at worst; beyond `most` it is not told exactly."""
        known: dict[tuple[int, int], int] = {}

        def count(schema: Any, part: Any, depth: int) -> int:
            if not isinstance(schema, Mapping):
                return 1
            key = (id(schema), id(part) if isinstance(part, (dict, list)) else 0)
            if key in known:
                return known[key]
            if depth >= DEEPEST or len(known) > most:
                return most + 1
            known[key] = most + 1  # until it is known: whoever comes back here goes round in a circle
            total = 1
            for child, held, times in self._applied(schema, part):
                total += times * count(child, held, depth + 1)
                if total > most:
                    break
            known[key] = total
            return total

        return count(self._root, value, 0)

    def _count(self, schema: Any, depth: int) -> int | None:
        """The rules of a part with all it refers to; None where that leads back, too deep or too far."""
        if not isinstance(schema, Mapping):
            return 1
        if id(schema) in self._parts:
            return self._parts[id(schema)]
        self._parts[id(schema)] = None  # until it is known: whoever comes back here goes round in a circle
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise Invalid("a part of the schema has an $id of its own, which is not taken", pointer="/schema")
        total = 1
        for child in self._children(schema):
            count = None if depth >= DEEPEST else self._count(child, depth + 1)
            if count is None or total > MOST_PARTS:
                return None
            total += count
        self._parts[id(schema)] = total
        return total

    def _children(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        yield from self._same(schema)
        for name in ("properties", "patternProperties"):
            yield from _values(schema.get(name))
        yield from _list(schema.get("prefixItems"))
        yield from _list(schema.get("items"))
        for name in (*_OF_VALUES, *_OF_ITEMS, "items", "propertyNames"):
            if isinstance(schema.get(name), Mapping):
                yield schema[name]

    def _same(self, schema: Mapping[str, Any]) -> list[Any]:
        """The parts that apply to the very value the whole applies to."""
        if id(schema) not in self._in_place:
            self._in_place[id(schema)] = list(self._beside(schema))
        return self._in_place[id(schema)]

    def _beside(self, schema: Mapping[str, Any]) -> Iterator[Any]:
        for name in _REFERENCES:
            if isinstance(schema.get(name), str):
                yield self._referred(schema[name])
        for name in _LISTS:
            yield from _list(schema.get(name))
        for name in _ONES:
            if name in schema:
                yield schema[name]
        for name in _MAPS:
            yield from _values(schema.get(name))

    def _applied(self, schema: Mapping[str, Any], value: Any) -> Iterator[tuple[Any, Any, int]]:
        """Which parts apply to what, and how many times: plain values are all alike."""
        for part in self._same(schema):
            yield part, value, 1
        if isinstance(value, dict):
            named = schema.get("properties")
            if isinstance(named, Mapping):
                for key in named.keys() & value.keys():
                    yield named[key], value[key], 1
            everywhere = [*_values(schema.get("patternProperties")), *_ones(schema, _OF_VALUES)]
            yield from _each(everywhere, list(value.values()) if everywhere else [])
            for part in _ones(schema, ("propertyNames",)):
                yield part, "", len(value)
        elif isinstance(value, list):
            for name in ("prefixItems", "items"):
                for part, held in zip(_list(schema.get(name)), value, strict=False):
                    yield part, held, 1
            yield from _each(_ones(schema, ("items", *_OF_ITEMS)), value)

    def _referred(self, reference: str) -> Any:
        """The place within the schema that a reference means; there is no other."""
        own = self._root.get("$id") if isinstance(self._root, Mapping) else None
        fragment = unquote(reference.removeprefix(own.removesuffix("#") if isinstance(own, str) else ""))
        try:
            if fragment in ("", "#"):
                return self._root
            if not fragment.startswith("#/"):
                return self._named()[fragment.removeprefix("#")]
            found = self._root
            for step in fragment[2:].split("/"):
                name = step.replace("~1", "/").replace("~0", "~")
                found = found[int(name)] if isinstance(found, list) else found[name]
            return found
        except (KeyError, IndexError, ValueError, TypeError):
            message = f"{reference[:200]!r} is no place within the schema, and others are not looked at"
            raise Invalid(message, pointer="/schema") from None

    def _named(self) -> dict[str, Any]:
        if self._anchors is None:
            self._anchors = {}
            waiting = [self._root]
            while waiting:
                one = waiting.pop()
                if isinstance(one, Mapping):
                    self._anchors |= {one[name]: one for name in _ANCHORS if isinstance(one.get(name), str)}
                    waiting += one.values()
                elif isinstance(one, list):
                    waiting += one
        return self._anchors


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, Mapping) else []


def _ones(schema: Mapping[str, Any], names: tuple[str, ...]) -> list[Any]:
    return [schema[name] for name in names if isinstance(schema.get(name), Mapping)]


def _each(parts: list[Any], values: list[Any]) -> Iterator[tuple[Any, Any, int]]:
    if parts:
        holders = [value for value in values if isinstance(value, (dict, list))]
        for part in parts:
            yield part, None, len(values) - len(holders)
            for value in holders:
                yield part, value, 1
