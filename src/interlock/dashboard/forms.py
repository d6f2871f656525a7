"""A form made from a JSON Schema, and the JSON that comes back from it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Final, NamedTuple

from interlock.dashboard.exact import Exact, read, written
from interlock.dashboard.render import spelled_out
from interlock.dashboard.schema import Rule, plain, rule
from interlock.dashboard.web import Fields
from interlock.domain.text import loads
from interlock.engine.schemas import fits
from interlock.errors import Invalid

WHOLE: Final = "data"
MOST_INPUTS: Final = 40
DEEPEST: Final = 4
LONG: Final = 80
ABSENT: Final = object()
NOTHING: Final = "\x00"  # which no page and no form can hold
YES_OR_NO: Final = (("true", "yes"), ("false", "no"))
TYPES: Final = {"email": "email", "uri": "url"}  # fields that a browser knows, by the format of a text
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


class Input(NamedTuple):
    """One field of a form; `kind` is text, long, number, integer, yes_no, choice, several, lines, json or group."""

    name: str
    label: str
    kind: str
    value: str = ""
    required: bool = False
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # what is sent, and what is read
    type: str = "text"
    bounds: tuple[tuple[str, float], ...] = ()  # as attributes of the field
    fields: tuple[Input, ...] = ()  # of a group
    may_be_null: bool = False
    key: str = ""  # its name in the object that it is a part of
    proposed: str | None = None  # the JSON that its value stands for, and that is meant if nobody changes it

    @property
    def needs_a_choice(self) -> bool:
        """There is no choice yet, and none is made for anybody."""
        return not self.may_be_left and len(self.choices) > 1 and self.value not in dict(self.choices)

    @property
    def may_be_left(self) -> bool:
        return not self.required or self.may_be_null


def inputs(schema: str | None, proposed: str | None) -> list[Input]:
    """The fields for a schema, filled with what was proposed; what no simple field fits is asked for as JSON."""
    if schema is None:
        return []
    root = loads(schema)
    given = ABSENT if proposed is None else read(proposed)
    if not rule(root, root).properties and proposed is not None and not fits(schema, proposed):
        given = ABSENT
    whole = _Maker(root).field(WHOLE, "Data", root, given, required=True, depth=0)
    names = [field.name for field in _simple([whole])]
    if len(names) > MOST_INPUTS or len({*names}) < len(names) or not all(map(_can_be_sent, names)):
        whole = _as_json(whole, given)
    return list(whole.fields) or [whole]


def refilled(fields: Iterable[Input], form: Fields) -> list[Input]:
    """The same fields as somebody has filled them in."""
    return [
        field._replace(fields=tuple(refilled(field.fields, form)))
        if field.kind == "group"
        else field._replace(value=_sent(field, form) or "")
        for field in fields
    ]


def data(schema: str | None, form: Fields, proposed: str | None = None) -> str | None:
    """The JSON text that a filled-in form means; None where there was nothing to fill in."""
    fields = inputs(schema, proposed)
    if not fields:
        return None
    return _text(fields[0], form) if fields[0].name == WHOLE else _object(fields, form)


class _Maker:
    """Makes fields from the parts of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def field(self, name: str, label: str, schema: Any, given: Any, *, required: bool, depth: int) -> Input:
        made = self._made(name, label, schema, given, required=required, depth=depth)
        return made._replace(proposed=written(given)) if _stands_for(made, given) else made

    def _made(self, name: str, label: str, schema: Any, given: Any, *, required: bool, depth: int) -> Input:
        wanted = rule(schema, self._root)
        value = wanted.says.get("default", ABSENT) if given is ABSENT else given
        label, hint = str(wanted.says.get("title") or label), str(wanted.says.get("description") or "")
        base = Input(name, label, "json", "", required, hint, may_be_null=wanted.may_be_null)
        if wanted.options:
            choices = tuple((json.dumps(option), words) for option, words in wanted.options)
            chosen = next((json.dumps(option) for option, _ in wanted.options if _equal(option, value)), "")
            return base._replace(kind="choice", choices=choices, value=chosen)
        match wanted.says.get("type"):
            case "string":
                return _texts(base, wanted, value)
            case "boolean" if not wanted.may_be_null and (depth < 2 or required):
                return base._replace(kind="yes_no", value="true" if value is True else "")
            case "boolean":
                chosen = json.dumps(value) if isinstance(value, bool) else ""
                return base._replace(kind="choice", choices=YES_OR_NO, value=chosen)
            case "integer" | "number" as kind:
                bounds = _bounds(wanted, minimum="min", maximum="max")
                hint = " ".join(part for part in (hint, _range(dict(bounds))) if part)
                is_number = isinstance(value, int | float) and not isinstance(value, bool)
                return base._replace(kind=kind, value=_number(value) if is_number else "", bounds=bounds, hint=hint)
            case "array":
                return self._array(base, wanted, value)
        loses = depth and isinstance(value, dict) and not value.keys() <= wanted.properties.keys()
        if wanted.properties and depth < DEEPEST and not loses:
            return self._group(base, wanted, value, depth)
        return _as_json(base, value)

    def _group(self, base: Input, wanted: Rule, value: Any, depth: int) -> Input:
        given = value if isinstance(value, dict) else {}
        fields = tuple(
            self.field(
                f"{base.name}.{name}",
                name,
                part,
                given.get(name, ABSENT),
                required=base.required and name in wanted.required,
                depth=depth + 1,
            )._replace(key=name)
            for name, part in wanted.properties.items()
        )
        return base._replace(kind="group", fields=fields)

    def _array(self, base: Input, wanted: Rule, value: Any) -> Input:
        """Values to tick, or one in each line; whatever has more to it, or does not fit into lines, is JSON."""
        items = rule(wanted.says.get("items"), self._root)
        given = value if isinstance(value, list) else []
        if items.options:
            choices = tuple((json.dumps(option), words) for option, words in items.options)
            ticked = [json.dumps(option) for option, _ in items.options if any(_equal(option, one) for one in given)]
            return base._replace(kind="several", choices=choices, value="\n".join(ticked))
        kind = items.says.get("type")
        if kind == "string" and all(isinstance(one, str) and one.strip() == one != "" for one in given):
            fits = not any(len(one.splitlines()) > 1 or NOTHING in one for one in given)
        else:
            fits = kind in ("integer", "number") and all(isinstance(one, int | float) for one in given)
        if items.may_be_null or not fits or "prefixItems" in wanted.says:
            return _as_json(base, value)
        return base._replace(kind="lines", type=str(kind), value="\n".join(map(_number_or_text, given)))


def _texts(base: Input, wanted: Rule, value: Any) -> Input:
    text, longest = value if isinstance(value, str) else "", wanted.number("maxLength") or 0
    bounds = _bounds(wanted, minLength="minlength", maxLength="maxlength")
    if NOTHING in text:
        return _as_json(base, value)
    if len(text) > LONG or "\n" in text or "\r" in text or longest > 200:
        return base._replace(kind="long", value=text, bounds=bounds)
    format = wanted.says.get("format")
    if format == "date" and _is_day(text):
        return base._replace(kind="text", value=text, type="date")
    # Fields that a browser knows leave out what it thinks is not a part of such a text.
    is_plain = text.isascii() and text.isprintable() and text.strip() == text
    type = TYPES.get(str(format), "text") if is_plain else "text"
    return base._replace(kind="text", value=text, type=type, bounds=bounds)


def _is_day(text: str) -> bool:
    try:
        return not text or (len(text) == len("2026-01-31") and date.fromisoformat(text) is not None)
    except ValueError:
        return False


def _as_json(base: Input, value: Any) -> Input:
    text = "" if value is ABSENT else spelled_out(written(value))
    return base._replace(kind="json", label=f"{base.label} as JSON", value=text, fields=(), proposed=text or None)


def _stands_for(field: Input, given: Any) -> bool:
    """Whether the value of a field is what was proposed, and not what is left of it in such a field."""
    if given is ABSENT or given is None:
        return given is None and (field.may_be_null or field.kind == "json")
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


def _object(fields: Sequence[Input], form: Fields) -> str:
    parts = ((field.key, _text(field, form)) for field in fields)
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in parts if text is not None) + "}"


def _text(field: Input, form: Fields) -> str | None:
    """One value as JSON; what is empty and need not be there is left out."""
    if field.kind == "group":
        if field.proposed is not None and not any(_sent(one, form) for one in _simple(field.fields)):
            return field.proposed
        says_nothing = not any(_text(one, form) for one in field.fields)
        return None if says_nothing and not field.required else _object(field.fields, form)
    sent = _sent(field, form)
    if field.proposed is not None and sent is not None and _in_lines(sent) == _in_lines(field.value):
        return field.proposed
    if field.kind == "yes_no":
        return "true" if sent else "false"
    if sent is None or not sent.strip():
        return _empty(field) if field.required and (sent is not None or field.kind == "several") else None
    return _said(field, sent)


def _empty(field: Input) -> str | None:
    """What it means that nothing is in a field that must be there."""
    if field.may_be_null:
        return "null"
    return {"text": '""', "long": '""', "lines": "[]", "several": "[]"}.get(field.kind)


def _said(field: Input, sent: str) -> str:
    pointer = f"/data/{field.label}"
    if field.kind in ("text", "long"):
        return json.dumps(_in_lines(sent))
    if field.kind in ("choice", "several"):
        chosen = sent.split("\n") if field.kind == "several" else [sent]
        if not set(chosen) <= set(dict(field.choices)):
            raise Invalid(f"{field.label}: choose one of the given", pointer=pointer)
        return sent if field.kind == "choice" else f"[{', '.join(chosen)}]"
    if field.kind == "json":
        return _checked(field, sent)
    lines = [line.strip() for line in sent.splitlines() if line.strip()] if field.kind == "lines" else [sent.strip()]
    if field.kind == "lines" and field.type == "string":
        return json.dumps(lines)
    if not all(map(_NUMBER.fullmatch, lines)):
        raise Invalid(f"{field.label} must be a number", pointer=pointer)
    return f"[{', '.join(lines)}]" if field.kind == "lines" else lines[0]


def _checked(field: Input, sent: str) -> str:
    try:
        loads(sent)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{field.label}: this is not JSON ({error})", pointer=f"/data/{field.label}") from None
    return sent.strip()


def _sent(field: Input, form: Fields) -> str | None:
    """What a form says for a field; what was ticked is one line each."""
    return "\n".join(form.all(field.name)) if field.kind == "several" else form.raw(field.name)


def _in_lines(text: str) -> str:
    """A text with the ends of lines that everybody has: a browser sends its own, whatever it was given."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _can_be_sent(name: str) -> bool:
    """Whether a browser sends the name of a field as it is."""
    return not {"\r", "\n", NOTHING} & {*name}


def _simple(fields: Iterable[Input]) -> Iterable[Input]:
    for field in fields:
        yield from _simple(field.fields) if field.kind == "group" else [field]


def _bounds(wanted: Rule, **attributes: str) -> tuple[tuple[str, float], ...]:
    found = ((attribute, wanted.number(name)) for name, attribute in attributes.items())
    return tuple((attribute, bound) for attribute, bound in found if bound is not None)


def _range(bounds: Mapping[str, float]) -> str:
    least, most = bounds.get("min"), bounds.get("max")
    if least is not None and most is not None:
        return f"From {plain(least)} to {plain(most)}."
    return f"At least {plain(least)}." if least is not None else f"At most {plain(most)}." if most is not None else ""


def _equal(option: Any, value: Any) -> bool:
    """Equal as JSON is, where true is not 1."""
    return isinstance(option, bool) == isinstance(value, bool) and bool(option == value)


def _number(value: Any) -> str:
    return value.text if isinstance(value, Exact) else json.dumps(value)


def _number_or_text(value: Any) -> str:
    return value if isinstance(value, str) else _number(value)
