"""What a JSON Schema says about one value, brought into the plain shape that a form can ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

MOST_TURNS: Final = 20  # a reference may lead to another, and in a circle
NOTHING: Final[Mapping[str, Any]] = {}


class Rule(NamedTuple):
    """The keywords for one value without references, and whether null is allowed beside them."""

    says: Mapping[str, Any]
    may_be_null: bool = False

    @property
    def properties(self) -> Mapping[str, Any]:
        """What is known of the parts of an object; nothing if it is none, or may have any."""
        found = self.says.get("properties")
        return found if isinstance(found, dict) and self.says.get("type", "object") == "object" else NOTHING

    @property
    def required(self) -> frozenset[str]:
        names = self.says.get("required")
        return frozenset(names if isinstance(names, list) else ())

    @property
    def options(self) -> list[tuple[Any, str]]:
        """The values to choose from, each with its words."""
        if "const" in self.says:
            return [(self.says["const"], plain(self.says["const"]))]
        if isinstance(listed := self.says.get("enum"), list):
            return [(value, plain(value)) for value in listed]
        parts = self.says.get("oneOf", self.says.get("anyOf"))
        if not isinstance(parts, list) or not all(isinstance(part, dict) and "const" in part for part in parts):
            return []
        return [(part["const"], str(part.get("title") or plain(part["const"]))) for part in parts]

    def number(self, name: str) -> int | float | None:
        found = self.says.get(name)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def rule(schema: Any, root: Any) -> Rule:
    """The rule for one value; what a form cannot ask for goes unread here, and is checked when the data comes."""
    says, may_be_null = _followed(schema, root), False
    for name in ("anyOf", "oneOf"):
        parts = [_followed(part, root) for part in says.get(name) or ()]
        others = [part for part in parts if part.get("type") != "null"]
        if len(parts) == len(others) + 1 == 2:
            may_be_null = True
            says = {**others[0], **{key: value for key, value in says.items() if key != name}}
    kinds = says.get("type")
    if isinstance(kinds, list) and len(rest := [kind for kind in kinds if kind != "null"]) == 1:
        may_be_null = may_be_null or len(rest) < len(kinds)
        says = {**says, "type": rest[0]}
    return Rule(says, may_be_null)


def plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _followed(schema: Any, root: Any) -> Mapping[str, Any]:
    """A schema with what it refers to in the same document; what stands beside a reference goes first."""
    says = schema if isinstance(schema, dict) else NOTHING
    for _ in range(MOST_TURNS):
        parts = says.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            says = {**parts[0], **{key: value for key, value in says.items() if key != "allOf"}}
        elif isinstance(reference := says.get("$ref"), str):
            says = {**_at(root, reference), **{key: value for key, value in says.items() if key != "$ref"}}
        else:
            return says
    return NOTHING


def _at(root: Any, reference: str) -> Mapping[str, Any]:
    """What a pointer leads to; names of other documents and anchors lead nowhere here."""
    place, (document, hash, path) = root, reference.partition("#")
    if document or not hash or (path and not path.startswith("/")):
        return NOTHING
    for step in path.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        place = place.get(name) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else NOTHING
