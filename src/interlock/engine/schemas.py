"""JSON Schemas that users register: compiled once, never fetching anything, never running a slow pattern."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Final

import jsonschema_rs

from interlock.errors import Fault, Invalid

MOST_FAULTS: Final = 20
Validator = jsonschema_rs.Validator


@lru_cache(1024)
def compiled(schema: str) -> Validator:
    """The validator for a schema, which is JSON text; a schema that is none is Invalid."""
    try:
        parsed = json.loads(schema)
        if isinstance(parsed, str):  # which would be taken for the text of a schema
            raise TypeError("a string is none")
        return jsonschema_rs.validator_for(
            parsed, pattern_options=jsonschema_rs.RegexOptions(), offline=True, validate_formats=True
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        message = getattr(error, "message", None) or str(error)
        raise Invalid(f"this is not a JSON Schema that can be used: {message}", pointer="/schema") from None


def check(schema: str, text: str, *, what: str) -> None:
    """Refuse a JSON text that the schema does not allow, naming every place at fault."""
    validator = compiled(schema)
    faults = []
    for error in validator.iter_errors(json.loads(text)):
        path = "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in error.instance_path)
        faults.append(Fault(f"/{what}{path}", error.message[:500]))
        if len(faults) == MOST_FAULTS:
            break
    if faults:
        raise Invalid(f"{what} does not fit its schema: {faults[0].message}", pointer=faults[0].pointer, faults=faults)


def fits(schema: str, text: str) -> bool:
    """Whether the schema allows a JSON text."""
    return compiled(schema).is_valid(json.loads(text))
