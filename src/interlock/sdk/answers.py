"""The answer to a question: the form that approvers fill in, and the typed value that the task gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from interlock.sdk import serialization

WRAPPED: Final = "answer"  # the only field of a form whose answer is not an object


class AnswerForm(NamedTuple):
    """A JSON Schema of an object, and how to get the answer out of it."""

    schema: dict[str, Any]
    type: Any
    is_wrapped: bool

    @classmethod
    def of(cls, wanted: Any) -> AnswerForm:
        """Return the form for a JSON Schema, or for a type."""
        type = Any if isinstance(wanted, Mapping) else wanted
        schema = dict(wanted) if isinstance(wanted, Mapping) else inlined(_schema_of(wanted))
        if schema.get("type") == "object":
            return cls(schema, type, False)
        form = {"type": "object", "properties": {WRAPPED: schema}, "required": [WRAPPED], "additionalProperties": False}
        return cls(form, type, True)

    def answer(self, data: Any) -> Any:
        """Return the answer in its type."""
        value = data.get(WRAPPED) if self.is_wrapped and isinstance(data, dict) else data
        return serialization.decode(serialization.encode(value), self.type)


def _schema_of(wanted: Any) -> dict[str, Any]:
    describe = getattr(wanted, "model_json_schema", None)
    return dict(describe()) if describe is not None else serialization.schema(wanted)


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace references by their definitions: a form shows the fields. A definition inside itself is any value."""
    definitions = schema.get("$defs", {})

    def inline(node: Any, within: tuple[str, ...]) -> Any:
        if isinstance(node, list):
            return [inline(one, within) for one in node]
        if not isinstance(node, dict):
            return node
        name = str(node.get("$ref", "")).rpartition("/")[2]
        if name in within:
            return {"title": name}
        if name in definitions:
            others = {key: value for key, value in node.items() if key not in ("$ref", "$defs")}
            return inline(definitions[name], (*within, name)) | others
        return {key: inline(value, within) for key, value in node.items() if key != "$defs"}

    found: dict[str, Any] = inline(schema, ())
    return found
