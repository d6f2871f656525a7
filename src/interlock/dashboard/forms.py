"""A form made from a JSON Schema, and the JSON that comes back from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from interlock.dashboard.web import Fields
from interlock.errors import Invalid

PREFIX: Final = "data."
WHOLE: Final = "data"
MOST_INPUTS: Final = 40
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class Input(NamedTuple):
    """One field of a form; `kind` is text, long, number, integer, yes_no, choice or json."""

    name: str
    label: str
    kind: str
    value: str
    required: bool
    hint: str
    choices: tuple[tuple[str, str], ...] = ()  # what is sent, and what is read


def inputs(schema: str | None, proposed: str | None) -> list[Input]:
    """The fields for a schema, filled with what was proposed; what no simple field fits is asked for as JSON."""
    if schema is None:
        return []
    shape, given = json.loads(schema), _object(proposed)
    properties = shape.get("properties") if isinstance(shape, dict) else None
    if not isinstance(properties, dict) or not properties or len(properties) > MOST_INPUTS:
        default = shape.get("default") if isinstance(shape, dict) else None
        return [Input(WHOLE, "Data (JSON)", "json", "" if default is None else json.dumps(default), True, "")]
    required = shape.get("required", [])
    return [
        _input(name, rule if isinstance(rule, dict) else {}, given, name in required)
        for name, rule in properties.items()
    ]


def refilled(fields: Sequence[Input], form: Fields) -> list[Input]:
    """The same fields as somebody has filled them in."""
    return [field._replace(value=form.raw(field.name) or "") for field in fields]


def data(schema: str | None, form: Fields) -> str | None:
    """The JSON text that a filled-in form means; None where there was nothing to fill in."""
    fields = inputs(schema, None)
    if not fields:
        return None
    if fields[0].name == WHOLE:
        return form.one(WHOLE)
    parts = []
    for field in fields:
        text = _text(field, form.raw(field.name))
        if text is not None:
            parts.append(f"{json.dumps(field.name.removeprefix(PREFIX))}: {text}")
    return "{" + ", ".join(parts) + "}"


def _input(name: str, rule: Mapping[str, Any], given: Mapping[str, Any], required: bool) -> Input:
    value = given.get(name, rule.get("default"))
    label, hint = str(rule.get("title") or name), str(rule.get("description") or "")
    options = rule.get("enum")
    match rule.get("type"):
        case _ if isinstance(options, list) and options:
            choices = tuple((json.dumps(option), _plain(option)) for option in options)
            return Input(PREFIX + name, label, "choice", json.dumps(value), required, hint, choices)
        case "string":
            text = value if isinstance(value, str) else ""
            kind = "long" if len(text) > 80 or "\n" in text or rule.get("maxLength", 0) > 200 else "text"
            return Input(PREFIX + name, label, kind, text, required, hint)
        case "boolean":
            return Input(PREFIX + name, label, "yes_no", "true" if value is True else "", required, hint)
        case "integer" | "number" as kind:
            return Input(PREFIX + name, label, kind, "" if value is None else json.dumps(value), required, hint)
        case _:
            text = "" if value is None else json.dumps(value, ensure_ascii=False, indent=2)
            return Input(PREFIX + name, label, "json", text, required, hint)


def _text(field: Input, sent: str | None) -> str | None:
    """One value as JSON; an empty field that nobody has to fill in is left out."""
    if field.kind == "yes_no":
        return "true" if sent else "false"
    if sent is None or (not sent.strip() and not (field.kind in ("text", "long") and field.required)):
        return None
    if field.kind in ("text", "long"):
        return json.dumps(sent.replace("\r\n", "\n"))
    if field.kind == "choice" and sent not in {value for value, _ in field.choices}:
        raise Invalid(f"{field.label}: choose one of the given", pointer=f"/data/{field.label}")
    if field.kind in ("integer", "number") and not _NUMBER.fullmatch(sent.strip()):
        raise Invalid(f"{field.label} must be a number", pointer=f"/data/{field.label}")
    return sent.strip()


def _object(text: str | None) -> Mapping[str, Any]:
    value = json.loads(text) if text is not None else None
    return value if isinstance(value, dict) else {}


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
