"""JSON Schemas that users register: compiled once, without remote references, with bounded validation time."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import OrderedDict
from decimal import Decimal
from threading import Lock
from typing import Any, Final, NamedTuple

import jsonschema_rs

from interlock.engine.schema_cost import SchemaCost, size
from interlock.errors import FieldError, Invalid

MAX_FAULTS: Final = 20
LIGHT_LENGTH: Final = 16 * 1024  # a compiled schema takes about thirty times the memory of its text
LIGHT_BYTES: Final = 1024 * 1024
HEAVY_BYTES: Final = 6 * 1024 * 1024
MAX_LIGHT: Final = 256
MAX_HEAVY: Final = 16
MAX_PATTERNS: Final = 500
MAX_PATTERNS_LENGTH: Final = 32 * 1024

# The cost of a validation in units of 10 ns: the maximum, and the limit for running it on the event loop.
MAX_COST: Final = 3_000_000
COST_ON_LOOP: Final = 100_000
LENGTH_ON_LOOP: Final = 32 * 1024
# An explanation costs much more than a yes or no: every error carries copies of the value and of the violated rule.
MAX_RULES_EXPLAINED: Final = 20_000  # rules times values
MAX_EXPLAINED: Final = 5_000_000  # rules times bytes
MAX_COMPARED: Final = 50_000_000  # bytes of the schema times bytes of the text

# Numbers that require bignum arithmetic; a match inside a string is harmless.
_EXTREME: Final = re.compile(r"\d{40}|\d[eE][+-]?\d{2}")
_NOT_ZERO: Final = re.compile(r"-?[0.]*[1-9]")
_MAX_DIGITS: Final = 200
_MAX_EXPONENT: Final = 400

_ADVICE: Final = (
    "simplify the patterns of the schema (start them with ^, use maxLength instead of repetitions such as {0,3000}), "
    "its enums and its references, or send less text"
)


class Compiled(NamedTuple):
    """A compiled schema."""

    validator: jsonschema_rs.Validator
    effort: SchemaCost
    size: int


_light: Final[OrderedDict[str, Compiled]] = OrderedDict()
_heavy: Final[OrderedDict[str, Compiled]] = OrderedDict()
_lock: Final = Lock()


async def register(schema: str) -> None:
    """Reject JSON text that is not a JSON Schema, or one that costs too much to compile."""
    if len(schema) <= 1024 and '"pattern' not in schema:
        compiled(schema)
    else:
        await asyncio.to_thread(compiled, schema)


def compiled(schema: str) -> Compiled:
    """Compile a schema from JSON text; raise Invalid if it is not a schema."""
    known = _known(schema)
    if known is not None:
        return known
    light = len(schema) <= LIGHT_LENGTH
    try:
        made = _made(schema, LIGHT_BYTES if light else HEAVY_BYTES)
    except Invalid:
        if not light:
            raise
        made, light = _made(schema, HEAVY_BYTES), False  # its patterns may only need more memory
    with _lock:
        kept = _light if light else _heavy
        kept[schema] = made
        while len(kept) > (MAX_LIGHT if light else MAX_HEAVY):
            kept.popitem(last=False)
    return made


def _known(schema: str) -> Compiled | None:
    with _lock:
        for kept in (_light, _heavy):
            if schema in kept:
                kept.move_to_end(schema)
                return kept[schema]
    return None


def _made(schema: str, room: int) -> Compiled:
    """Compile a schema whose patterns share this memory limit: a short pattern can expand to megabytes."""
    try:
        parsed, extreme = _value(schema)
        if isinstance(parsed, str):  # the library would parse it as the text of a schema
            raise TypeError("a schema is an object or a boolean, not a string")
        number, length = _patterns(parsed)
        if number > MAX_PATTERNS or length > MAX_PATTERNS_LENGTH:
            raise ValueError(
                f"at most {MAX_PATTERNS} patterns of {MAX_PATTERNS_LENGTH} characters together are accepted"
            )
        options = jsonschema_rs.RegexOptions(size_limit=room // max(number, 1))
        validator = jsonschema_rs.validator_for(parsed, pattern_options=options, offline=True, validate_formats=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        message = getattr(error, "message", None) or str(error)
        raise Invalid(f"this is not a JSON Schema that can be used: {message[:1000]}", pointer="/schema") from None
    return Compiled(validator, SchemaCost(parsed, extreme=extreme), len(schema))


def _patterns(schema: Any) -> tuple[int, int]:
    """Return an upper bound on the number of patterns, and their total length."""
    found: list[str] = []
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if isinstance(pattern := one.get("pattern"), str):
                found.append(pattern)
            if isinstance(named := one.get("patternProperties"), dict):
                found += named
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return len(found), sum(map(len, found))


async def check(schema: str, text: str, *, what: str) -> None:
    """Reject a JSON text that violates the schema, without blocking the event loop for long."""
    known = _known(schema)
    if known is not None and len(text) <= LENGTH_ON_LOOP and _at_most(known, text) <= COST_ON_LOOP:
        judge(schema, text, what=what)
    else:
        await asyncio.to_thread(judge, schema, text, what=what)


def judge(schema: str, text: str, *, what: str) -> None:
    """Reject a JSON text that violates the schema; list the violations unless that is too expensive."""
    known = compiled(schema)
    value, extreme = _value(text)
    cost = _at_most(known, text)
    if cost > MAX_COST or extreme:
        cost = known.effort.cost(value, MAX_COST, extreme=extreme)
    if cost > MAX_COST:
        raise Invalid(f"{what} takes too long to compare with its schema: {_ADVICE}", pointer=f"/{what}")
    if known.validator.is_valid(value):
        return
    faults = [FieldError(f"/{what}", "it is not what the schema asks for")]
    load = known.effort.load
    rules = cost if load is None else load.rules
    if (
        cost <= MAX_COST // 4
        and (cost if load is None else load.rules * size(value)) <= MAX_RULES_EXPLAINED
        and rules * len(text) <= MAX_EXPLAINED
        and known.size * len(text) <= MAX_COMPARED
    ):
        faults = _faults(known, value, what)
    raise Invalid(
        f"{what} is not valid against its schema: {faults[0].message}", pointer=faults[0].pointer, faults=faults
    )


def fits(schema: str, text: str) -> bool:
    """Return whether a JSON text is valid against the schema."""
    try:
        judge(schema, text, what="value")
    except Invalid:
        return False
    return True


def _at_most(known: Compiled, text: str) -> float:
    """Return an upper bound on the validation cost, from the length of the text and the number of its values."""
    load = known.effort.load
    if load is None:
        return float("inf")
    values = 1 + text.count(",") + text.count(":") + text.count("[") + text.count("{")
    return load.by_value * values + load.by_byte * len(text) * (1 if text.isascii() else 3)


def _value(text: str) -> tuple[Any, bool]:
    """Parse a JSON text for validation; also return whether it has numbers with many digits."""
    if _EXTREME.search(text) is None:
        return json.loads(text), False
    return json.loads(text, parse_int=_whole, parse_float=_decimal), True


def _whole(digits: str) -> int:
    """Parse an integer; shorten a huge one to its first and last digits, which validates the same."""
    return int(digits if len(digits) <= 2 * _MAX_DIGITS else digits[:_MAX_DIGITS] + digits[-_MAX_DIGITS:])


def _decimal(digits: str) -> Decimal | float:
    """Parse a number; replace one outside the range of a double by one that validates the same."""
    value = float(digits)
    if math.isfinite(value) and (value or not _NOT_ZERO.match(digits)):
        return value
    sign = "-" if digits[0] == "-" else ""
    return Decimal(f"{sign}1e{-_MAX_EXPONENT if value == 0 else _MAX_EXPONENT}")


def _faults(known: Compiled, value: Any, what: str) -> list[FieldError]:
    faults = []
    for error in known.validator.iter_errors(value):
        path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
        faults.append(FieldError(f"/{what}{path}", error.message[:500]))
        if len(faults) == MAX_FAULTS:
            break
    return faults
