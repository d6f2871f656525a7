"""JSON Schemas that users register: compiled once, never fetching anything, never running for long."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

import jsonschema_rs

from interlock.engine.effort import Effort
from interlock.errors import Fault, Invalid

MOST_FAULTS: Final = 20
LIGHT_LENGTH: Final = 16 * 1024  # ready to judge, a schema takes some thirty times as much as its text
LIGHT_BYTES: Final = 1024 * 1024
HEAVY_BYTES: Final = 16 * 1024 * 1024
MOST_RULES: Final = 1_000_000  # applied to one text
# To explain is much dearer than to judge: every fault carries copies of the value and of the rule that it broke.
MOST_RULES_EXPLAINED: Final = 2_000
MOST_EXPLAINED: Final = 5_000_000  # rules times bytes
MOST_COMPARED: Final = 50_000_000  # bytes of the schema times bytes of the text


class Compiled(NamedTuple):
    """A schema that is ready to judge."""

    validator: jsonschema_rs.Validator
    effort: Effort
    size: int


def compiled(schema: str) -> Compiled:
    """A schema, which is JSON text; one that is none is Invalid."""
    return (len(schema) <= LIGHT_LENGTH and _light(schema)) or _heavy(schema)


@lru_cache(256)
def _light(schema: str) -> Compiled | None:
    """A schema as most are, or None: for one that is none, and for one whose patterns need more memory."""
    try:
        return _made(schema, LIGHT_BYTES)
    except Invalid:
        return None


@lru_cache(16)
def _heavy(schema: str) -> Compiled:
    return _made(schema, HEAVY_BYTES)


def _made(schema: str, room: int) -> Compiled:
    """A schema whose patterns share this much memory: a few letters of one can stand for megabytes."""
    try:
        parsed = json.loads(schema)
        if isinstance(parsed, str):  # which would be taken for the text of a schema
            raise TypeError("a string is none")
        options = jsonschema_rs.RegexOptions(size_limit=room // max(_patterns(parsed), 1))
        validator = jsonschema_rs.validator_for(parsed, pattern_options=options, offline=True, validate_formats=True)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        message = getattr(error, "message", None) or str(error)
        raise Invalid(f"this is not a JSON Schema that can be used: {message}", pointer="/schema") from None
    return Compiled(validator, Effort(parsed), len(schema))


def _patterns(schema: Any) -> int:
    """How many patterns there are at most."""
    found = 0
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            named = one.get("patternProperties")
            found += isinstance(one.get("pattern"), str) + (len(named) if isinstance(named, dict) else 0)
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def check(schema: str, text: str, *, what: str) -> None:
    """Refuse a JSON text that the schema does not allow, naming the places at fault where that is not too dear."""
    known, value = compiled(schema), json.loads(text)
    parts = known.effort.parts
    rules = known.effort.rules(value, MOST_RULES) if parts is None else parts
    if rules > MOST_RULES:
        raise Invalid(f"{what} takes too long to compare with its schema", pointer=f"/{what}")
    if known.validator.is_valid(value):
        return
    faults = [Fault(f"/{what}", "it is not what the schema asks for")]
    if (
        rules <= MOST_RULES_EXPLAINED
        and rules * len(text) <= MOST_EXPLAINED
        and known.size * len(text) <= MOST_COMPARED
    ):
        faults = _faults(known, value, what)
    raise Invalid(f"{what} does not fit its schema: {faults[0].message}", pointer=faults[0].pointer, faults=faults)


def fits(schema: str, text: str) -> bool:
    """Whether the schema allows a JSON text."""
    try:
        check(schema, text, what="value")
    except Invalid:
        return False
    return True


def _faults(known: Compiled, value: Any, what: str) -> list[Fault]:
    faults = []
    for error in known.validator.iter_errors(value):
        path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
        faults.append(Fault(f"/{what}{path}", error.message[:500]))
        if len(faults) == MOST_FAULTS:
            break
    return faults
