"""Forms generated from a JSON Schema, and the JSON that a submitted form stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

from interlock.dashboard.control_characters import escape_control
from interlock.dashboard.form_schema import FieldSchema, as_text, resolve
from interlock.dashboard.http import Fields
from interlock.dashboard.lossless_json import LosslessNumber, decode, encode
from interlock.domain.json_text import loads
from interlock.engine.schemas import fits
from interlock.errors import FieldError, Invalid

DATA: Final = "data"
MAX_INPUTS: Final = 40
MAX_DEPTH: Final = 4
LONG_TEXT_LENGTH: Final = 80
ABSENT: Final = object()
NUL: Final = "\x00"  # cannot occur in a page or a form
BOOLEAN_CHOICES: Final = (("true", "yes"), ("false", "no"))
TYPES: Final = {"email": "email", "uri": "url"}  # HTML input types by JSON Schema format
REQUIRED: Final = {
    "choice": "required: choose a value",
    "several": "required: choose at least one value",
    "lines": "required: enter at least one line",
    "integer": "required: enter a whole number",
    "number": "required: enter a number",
    "json": "required: enter JSON",
}
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class Input(NamedTuple):
    """One field of a form; `kind` is text, long, number, integer, yes_no, choice, several, lines, json or group."""

    name: str
    label: str
    kind: str
    value: str = ""
    required: bool = False  # must be filled in
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # submitted value and label
    type: str = "text"
    bounds: tuple[tuple[str, float], ...] = ()  # as HTML attributes
    fields: tuple[Input, ...] = ()  # of a group
    nullable: bool = False
    key: str = ""  # its name in the object that contains it
    pointer: str = ""  # of its value in the submitted JSON
    required_in_group: bool = False  # must be filled in if its group is
    proposed: str | None = None  # the JSON of its initial value; submitted unless the value is edited
    error: str = ""
    initial: str | None = None  # what the field had before it was edited, if a proposal gave it

    @property
    def needs_choice(self) -> bool:
        """Whether a value must be chosen and none is preselected."""
        return not self.is_optional and len(self.choices) > 1 and self.value not in dict(self.choices)

    @property
    def is_optional(self) -> bool:
        return not self.required or self.nullable

    @property
    def must_fill(self) -> bool:
        """Whether the browser should reject an empty field; an empty proposal may stay as it is."""
        return not self.is_optional and self.proposed not in ('""', "[]")


def inputs(schema: str | None, proposed: str | None) -> list[Input]:
    """Return the fields for a schema, filled with the proposal; values without a simple field are edited as JSON."""
    if schema is None:
        return []
    root = loads(schema)
    given = ABSENT if proposed is None else decode(proposed)
    if not resolve(root, root).properties and proposed is not None and not fits(schema, proposed):
        given = ABSENT
    base = Input(DATA, "Data", "json", required=True, required_in_group=True, pointer=f"/{DATA}")
    whole = _FieldBuilder(root).field(base, root, given, depth=0)
    names = [field.name for field in _leaves([whole])]
    if len(names) > MAX_INPUTS or len({*names}) < len(names) or not all(map(_is_valid_name, names)):
        whole = _as_json(whole, given)
    return list(whole.fields) or [whole]


def names(schema: str | None) -> frozenset[str]:
    """Return the members of the data that a form of this schema can have."""
    if schema is None:
        return frozenset()
    root = loads(schema)
    return frozenset(resolve(root, root).properties)


def with_submitted(fields: Iterable[Input], form: Fields, errors: Mapping[str, str] | None = None) -> list[Input]:
    """Return the fields with their submitted values, and the errors by JSON pointer beside them."""
    found = errors or {}
    return [
        field._replace(fields=tuple(with_submitted(field.fields, form, found)), error=found.get(field.pointer, ""))
        if field.kind == "group"
        else field._replace(value=_submitted(field, form) or "", error=found.get(field.pointer, ""))
        for field in fields
    ]


def errors_by_pointer(fields: Iterable[Input], error: Invalid) -> tuple[dict[str, str], list[str]]:
    """Return the messages of an error by the pointer of the closest field, and those that belong to none."""
    known = {field.pointer for field in _all(fields)}
    found: dict[str, str] = {}
    others: list[str] = []
    for fault in error.faults:
        pointer = fault.pointer
        while pointer and pointer not in known:
            pointer = pointer.rpartition("/")[0]
        if not pointer:
            others.append(fault.message)
        else:
            found[pointer] = f"{found[pointer]}\n{fault.message}" if pointer in found else fault.message
    return found, others


def data(schema: str | None, form: Fields, proposed: str | None = None) -> str | None:
    """Return the JSON text of a submitted form, None without fields; raise Invalid with the errors of all fields."""
    fields = inputs(schema, proposed)
    if not fields:
        return None
    faults: list[FieldError] = []
    text = _value(fields[0], form, faults) if fields[0].name == DATA else _object(fields, form, faults)
    if faults:
        raise Invalid(f"{len(faults)} fields are invalid: {faults[0].message}", faults=faults)
    return text


class _FieldBuilder:
    """Builds fields from the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def field(self, base: Input, schema: Any, given: Any, *, depth: int) -> Input:
        built = self._build(base, schema, given, depth)
        if built.kind != "group" and given is not ABSENT:
            built = built._replace(initial=dict(built.choices).get(built.value, built.value))
        return built._replace(proposed=encode(given)) if _represents(built, given) else built

    def _build(self, base: Input, schema: Any, given: Any, depth: int) -> Input:
        wanted = resolve(schema, self._root)
        value = wanted.keywords.get("default", ABSENT) if given is ABSENT else given
        label, hint = str(wanted.keywords.get("title") or base.label), str(wanted.keywords.get("description") or "")
        base = base._replace(label=label, hint=hint, nullable=wanted.nullable)
        if wanted.options:
            choices = tuple((json.dumps(option), words) for option, words in wanted.options)
            chosen = next((json.dumps(option) for option, _ in wanted.options if _equal(option, value)), "")
            return base._replace(kind="choice", choices=choices, value=chosen)
        match wanted.keywords.get("type"):
            case "string":
                return _text_field(base, wanted, value)
            case "boolean" if not wanted.nullable and (depth < 2 or base.required):
                return base._replace(kind="yes_no", value="true" if value is True else "")
            case "boolean":
                chosen = json.dumps(value) if isinstance(value, bool) else ""
                return base._replace(kind="choice", choices=BOOLEAN_CHOICES, value=chosen)
            case "integer" | "number" as kind:
                bounds = _bounds(wanted, minimum="min", maximum="max")
                hint = " ".join(part for part in (hint, _range(dict(bounds))) if part)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                return base._replace(kind=kind, value=_number(value) if is_number else "", bounds=bounds, hint=hint)
            case "array":
                return self._array(base, wanted, value)
        has_other_members = depth and isinstance(value, dict) and not value.keys() <= wanted.properties.keys()
        if wanted.properties and depth < MAX_DEPTH and not has_other_members:
            return self._group(base, wanted, value, depth)
        return _as_json(base, value)

    def _group(self, base: Input, wanted: FieldSchema, value: Any, depth: int) -> Input:
        given = value if isinstance(value, dict) else {}
        fields = tuple(
            self.field(
                Input(
                    f"{base.name}.{name}",
                    name,
                    "json",
                    required=base.required and name in wanted.required,
                    required_in_group=name in wanted.required,
                    key=name,
                    pointer=f"{base.pointer}/{name.replace('~', '~0').replace('/', '~1')}",
                ),
                part,
                given.get(name, ABSENT),
                depth=depth + 1,
            )
            for name, part in wanted.properties.items()
        )
        return base._replace(kind="group", fields=fields)

    def _array(self, base: Input, wanted: FieldSchema, value: Any) -> Input:
        """Build checkboxes for an enum and one line per text or number; other arrays are edited as JSON."""
        items = resolve(wanted.keywords.get("items"), self._root)
        given = value if isinstance(value, list) else []
        if items.options:
            choices = tuple((json.dumps(option), words) for option, words in items.options)
            ticked = [json.dumps(option) for option, _ in items.options if any(_equal(option, one) for one in given)]
            return base._replace(kind="several", choices=choices, value="\n".join(ticked))
        kind = items.keywords.get("type")
        if kind == "string" and all(isinstance(one, str) and one.strip() == one != "" for one in given):
            has_lines = not any(len(one.splitlines()) > 1 or NUL in one for one in given)
        else:
            has_lines = kind in ("integer", "number") and all(isinstance(one, int | float) for one in given)
        if items.nullable or not has_lines or "prefixItems" in wanted.keywords:
            return _as_json(base, value)
        return base._replace(kind="lines", type=str(kind), value="\n".join(map(_number_or_text, given)))


def _text_field(base: Input, wanted: FieldSchema, value: Any) -> Input:
    text, longest = value if isinstance(value, str) else "", wanted.number("maxLength") or 0
    bounds = _bounds(wanted, minLength="minlength", maxLength="maxlength")
    if NUL in text:
        return _as_json(base, value)
    if len(text) > LONG_TEXT_LENGTH or "\n" in text or "\r" in text or longest > 200:
        return base._replace(kind="long", value=text, bounds=bounds)
    format = wanted.keywords.get("format")
    if format == "date" and _is_date(text):
        return base._replace(kind="text", value=text, type="date")
    # Browsers strip characters that are not valid in an address from inputs of these types.
    is_plain = text.isascii() and text.isprintable() and text.strip() == text
    type = TYPES.get(str(format), "text") if is_plain else "text"
    return base._replace(kind="text", value=text, type=type, bounds=bounds)


def _is_date(text: str) -> bool:
    try:
        return not text or (len(text) == len("2026-01-31") and date.fromisoformat(text) is not None)
    except ValueError:
        return False


def _as_json(base: Input, value: Any) -> Input:
    text = "" if value is ABSENT else escape_control(encode(value))
    return base._replace(kind="json", label=f"{base.label} as JSON", value=text, fields=(), proposed=text or None)


def _represents(field: Input, given: Any) -> bool:
    """Return whether the value of a field is the whole proposal."""
    if given is ABSENT or given is None:
        return given is None and (field.nullable or field.kind == "json")
    match field.kind:
        case "text" | "long":
            return isinstance(given, str)
        case "integer" | "number":
            return bool(field.value)
        case "several":
            return isinstance(given, list) and len(given) == len(field.value.split("\n") if field.value else ())
        case "lines":
            return isinstance(given, list)
        case "group":
            return isinstance(given, dict) and not given
    return field.kind == "json"


def _object(fields: Sequence[Input], form: Fields, faults: list[FieldError]) -> str:
    parts = [(field.key, _value(field, form, faults)) for field in fields]
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in parts if text is not None) + "}"


def _value(field: Input, form: Fields, faults: list[FieldError]) -> str | None:
    """Return the JSON of one field, None if it is left out."""
    if field.kind == "group":
        return _group_value(field, form, faults)
    sent = _submitted(field, form)
    if field.proposed is not None and sent is not None and newlines(sent) == newlines(field.value):
        return field.proposed
    if field.kind == "yes_no":
        return "true" if sent else "false"
    if sent is None or not sent.strip():
        if field.required_in_group and not field.nullable:
            faults.append(FieldError(field.pointer, REQUIRED.get(field.kind, "required: enter a value")))
        return "null" if field.required_in_group and sent is not None else None
    try:
        return _encode(field, sent)
    except ValueError as error:
        faults.append(FieldError(field.pointer, str(error)))
        return None


def _group_value(field: Input, form: Fields, faults: list[FieldError]) -> str | None:
    """Return the JSON of an object; an optional one is left out if none of its fields is filled in."""
    filled = any((_submitted(one, form) or "").strip() for one in _leaves(field.fields))
    needs_values = any(one.required_in_group for one in field.fields)
    if not filled and field.proposed is not None and (field.nullable or not needs_values):
        return field.proposed
    if not filled and field.nullable:
        return "null" if field.required_in_group else None
    if not filled and not field.required:
        if field.required_in_group:
            faults.append(FieldError(field.pointer, "required: enter a value"))
        return None
    return _object(field.fields, form, faults)


def _encode(field: Input, sent: str) -> str:
    """Return the JSON of a submitted text; raise ValueError if it is not valid for the field."""
    if field.kind in ("text", "long"):
        return json.dumps(newlines(sent))
    if field.kind in ("choice", "several"):
        chosen = sent.split("\n") if field.kind == "several" else [sent]
        if not set(chosen) <= set(dict(field.choices)):
            raise ValueError("choose one of the listed values")
        return sent if field.kind == "choice" else f"[{', '.join(chosen)}]"
    if field.kind == "json":
        return checked_json(sent)
    lines = [line.strip() for line in sent.splitlines() if line.strip()] if field.kind == "lines" else [sent.strip()]
    if field.kind == "lines" and field.type == "string":
        return json.dumps(lines)
    if not all(map(_NUMBER.fullmatch, lines)):
        raise ValueError("expected a number on each line" if field.kind == "lines" else "expected a number")
    return f"[{', '.join(lines)}]" if field.kind == "lines" else lines[0]


def checked_json(sent: str) -> str:
    """Return a JSON text without the space around it; raise ValueError if it is not JSON."""
    try:
        loads(sent)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"invalid JSON: {error}") from None
    return sent.strip()


def _submitted(field: Input, form: Fields) -> str | None:
    """Return the submitted text of a field; checked boxes are one line each."""
    return "\n".join(form.all(field.name)) if field.kind == "several" else form.raw(field.name)


def newlines(text: str) -> str:
    """Normalize line ends: browsers submit CRLF for every newline."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _is_valid_name(name: str) -> bool:
    """Return whether browsers submit a field name unchanged."""
    return not {"\r", "\n", NUL} & {*name}


def _leaves(fields: Iterable[Input]) -> Iterable[Input]:
    for field in fields:
        yield from _leaves(field.fields) if field.kind == "group" else [field]


def _all(fields: Iterable[Input]) -> Iterable[Input]:
    for field in fields:
        yield field
        yield from _all(field.fields)


def _bounds(wanted: FieldSchema, **attributes: str) -> tuple[tuple[str, float], ...]:
    found = ((attribute, wanted.number(name)) for name, attribute in attributes.items())
    return tuple((attribute, bound) for attribute, bound in found if bound is not None)


def _range(bounds: Mapping[str, float]) -> str:
    low, high = bounds.get("min"), bounds.get("max")
    if low is not None and high is not None:
        return f"From {as_text(low)} to {as_text(high)}."
    return f"At least {as_text(low)}." if low is not None else f"At most {as_text(high)}." if high is not None else ""


def _equal(option: Any, value: Any) -> bool:
    """Compare as JSON does, where true is not 1."""
    return isinstance(option, bool) == isinstance(value, bool) and bool(option == value)


def _number(value: Any) -> str:
    return value.text if isinstance(value, LosslessNumber) else json.dumps(value)


def _number_or_text(value: Any) -> str:
    return value if isinstance(value, str) else _number(value)
