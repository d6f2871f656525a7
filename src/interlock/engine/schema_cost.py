"""Cost bound of a JSON Schema: references between its parts can multiply the work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from interlock.engine import patterns
from interlock.errors import Invalid

DEEPEST: Final = 200
MAX_STEPS: Final = 100_000

_LISTS: Final = ("allOf", "anyOf", "oneOf")
_ONES: Final = ("not", "if", "then", "else")
_MAPS: Final = ("dependentSchemas", "dependencies")
_OF_VALUES: Final = ("additionalProperties", "unevaluatedProperties")
_OF_ITEMS: Final = ("additionalItems", "unevaluatedItems", "contains")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS: Final = ("$anchor", "$dynamicAnchor")

# In units of 10 ns, measured with jsonschema-rs; most rules take one.
_COMPARED: Final = 15
_PER_ITEM: Final = 15
_FORMAT: Final = 15
_PART_BY_BYTE: Final = 1.5
_MULTIPLE: Final = 4
_MULTIPLE_OF_FRACTION: Final = 300
_MULTIPLE_OF_EXTREME: Final = 10_000
_EXTREME: Final = 1_000
_PLAIN: Final = range(-(2**53), 2**53)


class Load(NamedTuple):
    """The cost of rules: their sum for each value, and of their patterns for each byte of a string."""

    rules: float
    by_value: float
    by_byte: float


class Texts(NamedTuple):
    """Strings that the same rules apply to."""

    number: int
    size: int


class SchemaCost:
    """The cost of a schema, known before validation starts."""

    def __init__(self, root: Any, *, extreme: bool = False) -> None:
        self._root = root
        self._extreme = extreme
        self._anchors: dict[str, Any] | None = None
        self._loads: dict[int, Load | None] = {}
        self._own: dict[int, tuple[float, float, float]] = {}
        self._subschemas: dict[int, list[Any]] = {}
        self.load = self._sum(root, 0)
        """The load of all rules with every reference expanded; None if that never ends."""

    def cost(self, value: Any, most: float, *, extreme: bool) -> float:
        """Return the worst-case cost of validating a value with all it contains; beyond `most` it is not exact."""
        known: dict[tuple[int, int], float] = {}
        sizes: dict[int, int] = {}

        def count(schema: Any, part: Any, times: int, depth: int) -> float:
            if not isinstance(schema, Mapping):
                return times
            key = (id(schema), id(part))
            kept = isinstance(part, (dict, list))
            if kept and key in known:
                return known[key]
            if depth >= DEEPEST or len(known) > MAX_STEPS:
                return most + 1
            if kept:
                known[key] = most + 1  # placeholder that detects cycles
            total, by_byte, by_key = self._weigh(schema)
            total *= times
            if extreme and part is None:
                total += times * (_MULTIPLE_OF_EXTREME if "multipleOf" in schema else _EXTREME)
            if isinstance(part, Texts):
                total += by_byte * part.size
            elif isinstance(part, dict) and by_key:
                total += by_key * _texts(part).size
            elif isinstance(part, list) and schema.get("uniqueItems"):
                total += _PER_ITEM * size(part, sizes)
            for child, part_value, number in self._applied(schema, part, times):
                total += count(child, part_value, number, depth + 1)
                if total > most:
                    break
            if kept:
                known[key] = total
            return total

        ((_, part, times),) = _each([self._root], [value])
        return count(self._root, part, times, 0)

    def _sum(self, schema: Any, depth: int) -> Load | None:
        """Return the load of a part with all it refers to; None for a cycle or if it is nested too deeply."""
        if not isinstance(schema, Mapping):
            return Load(1, 1, 0)
        if id(schema) in self._loads:
            return self._loads[id(schema)]
        self._loads[id(schema)] = None  # placeholder that detects cycles
        if schema is not self._root and isinstance(schema.get("$id"), str):
            raise Invalid("a subschema has an $id: not supported", pointer="/schema")
        own, by_byte, by_key = self._weigh(schema)
        rules, by_value, by_byte = 1.0, own + _PER_ITEM * bool(schema.get("uniqueItems")), by_byte + by_key
        endless = False
        for child in self._children(schema):
            load = None if depth >= DEEPEST else self._sum(child, depth + 1)
            if load is None:
                endless = True  # check the others as well: a dangling reference is an error
            else:
                rules, by_value, by_byte = rules + load.rules, by_value + load.by_value, by_byte + load.by_byte
        self._loads[id(schema)] = None if endless else Load(rules, by_value, by_byte)
        return self._loads[id(schema)]

    def _weigh(self, schema: Mapping[str, Any]) -> tuple[float, float, float]:
        """Return what a rule costs by itself: for each value, each byte of a string, and each byte of the keys."""
        if id(schema) in self._own:
            return self._own[id(schema)]
        own = 2.0 + len(schema) + 2 * len(_values(schema.get("properties"))) + 2 * len(_list(schema.get("required")))
        own += sum(2 * len(_list(one)) for one in _values(schema.get("dependentRequired")))
        own += _FORMAT * ("format" in schema) + _PER_ITEM * ("contains" in schema)
        for rule in (schema.get("const"), schema.get("enum")):
            if isinstance(rule, dict) or (
                isinstance(rule, list) and any(isinstance(one, (dict, list)) for one in rule)
            ):
                own += _COMPARED * size(rule)
        if isinstance(rule := schema.get("const"), list):
            own += _COMPARED * size(rule)
        if "multipleOf" in schema:
            of = schema["multipleOf"]
            fraction = _MULTIPLE_OF_EXTREME if self._extreme or not _is_usual(of) else _MULTIPLE_OF_FRACTION
            own += _MULTIPLE if isinstance(of, int) and of in _PLAIN and not self._extreme else fraction
        pattern = schema.get("pattern")
        by_byte = patterns.work(pattern) * _PART_BY_BYTE if isinstance(pattern, str) else 0.0
        by_byte += 2.0 * ("format" in schema)
        named = schema.get("patternProperties")
        by_key = sum(patterns.work(one) for one in named) * 2 * _PART_BY_BYTE if isinstance(named, Mapping) else 0.0
        own += 3 * len(_values(named))
        self._own[id(schema)] = own, by_byte, by_key
        return own, by_byte, by_key

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
        """Return the parts that apply to the same value as the whole."""
        if id(schema) not in self._subschemas:
            self._subschemas[id(schema)] = list(self._beside(schema))
        return self._subschemas[id(schema)]

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

    def _applied(self, schema: Mapping[str, Any], value: Any, times: int) -> Iterator[tuple[Any, Any, int]]:
        """Yield which parts apply to which value, and how often; scalars count as equal, strings by length."""
        for part in self._same(schema):
            yield part, value, times
        if isinstance(value, dict):
            named = schema.get("properties")
            if isinstance(named, Mapping):
                for key in named.keys() & value.keys():
                    yield from _each([named[key]], [value[key]])
            everywhere = [*_values(schema.get("patternProperties")), *_ones(schema, _OF_VALUES)]
            yield from _each(everywhere, list(value.values()) if everywhere else [])
            for part in _ones(schema, ("propertyNames",)):
                names = _texts(value)
                yield part, names, names.number
        elif isinstance(value, list):
            for name in ("prefixItems", "items"):
                for part, part_value in zip(_list(schema.get(name)), value, strict=False):
                    yield from _each([part], [part_value])
            yield from _each(_ones(schema, ("items", *_OF_ITEMS)), value)

    def _referred(self, reference: str) -> Any:
        """Resolve a reference within the schema; no other reference is allowed."""
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
            message = f"{reference[:200]!r} is not a reference within the schema: external references are not supported"
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
        strings = [value for value in values if isinstance(value, str)]
        texts = Texts(len(strings), sum(map(_bytes, strings)))
        others = len(values) - len(holders) - len(strings)
        for part in parts:
            if others:
                yield part, None, others
            if strings:
                yield part, texts, texts.number
            for value in holders:
                yield part, value, 1


def _texts(value: dict[str, Any]) -> Texts:
    return Texts(len(value), sum(map(_bytes, value)))


def _bytes(value: str) -> int:
    return len(value) if value.isascii() else 3 * len(value)


def size(value: Any, known: dict[int, int] | None = None) -> int:
    """Count the values in a value, including itself and its keys; long strings count by their length."""
    known = {} if known is None else known
    if isinstance(value, str):
        return 1 + len(value) // 64
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        parts = value.values() if isinstance(value, dict) else value
        known[id(value)] = 1 + len(value) + sum(size(part, known) for part in parts)
    return known[id(value)]


def _is_usual(number: Any) -> bool:
    """Return whether a number is small enough in magnitude to divide by it without hundreds of digits."""
    return isinstance(number, (int, float)) and (number == 0 or -12 < math.log10(abs(number)) < 15)
