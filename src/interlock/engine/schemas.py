"""JSON Schemas that users register: compiled once, never fetching anything, never running for long."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple

import jsonschema_rs

from interlock.engine.effort import Effort
from interlock.errors import Fault, Invalid

MOST_FAULTS: Final = 20
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


@lru_cache(1024)
def compiled(schema: str) -> Compiled:
    """A schema, which is JSON text; one that is none is Invalid."""
    try:
        parsed = json.loads(schema)
        if isinstance(parsed, str):  # which would be taken for the text of a schema
            raise TypeError("a string is none")
        validator = jsonschema_rs.validator_for(
            parsed, pattern_options=jsonschema_rs.RegexOptions(), offline=True, validate_formats=True
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        message = getattr(error, "message", None) or str(error)
        raise Invalid(f"this is not a JSON Schema that can be used: {message}", pointer="/schema") from None
    return Compiled(validator, Effort(parsed), len(schema))


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
