"""JSON Schema of one value, resolved to the keywords that a form field needs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

MAX_REFERENCES: Final = 20  # references may form a cycle
EMPTY: Final[Mapping[str, Any]] = {}


class FieldSchema(NamedTuple):
    """The keywords for one value with references resolved; `nullable` if null is also valid."""

    keywords: Mapping[str, Any]
    nullable: bool = False

    @property
    def properties(self) -> Mapping[str, Any]:
        """The schemas of an object's members; empty for other types and for free-form objects."""
        found = self.keywords.get("properties")
        return found if isinstance(found, dict) and self.keywords.get("type", "object") == "object" else EMPTY

    @property
    def required(self) -> frozenset[str]:
        names = self.keywords.get("required")
        return frozenset(names if isinstance(names, list) else ())

    @property
    def options(self) -> list[tuple[Any, str]]:
        """The values to choose from, each with its label."""
        if "const" in self.keywords:
            return [(self.keywords["const"], as_text(self.keywords["const"]))]
        if isinstance(listed := self.keywords.get("enum"), list):
            return [(value, as_text(value)) for value in listed]
        parts = self.keywords.get("oneOf", self.keywords.get("anyOf"))
        if not isinstance(parts, list) or not all(isinstance(part, dict) and "const" in part for part in parts):
            return []
        return [(part["const"], str(part.get("title") or as_text(part["const"]))) for part in parts]

    def number(self, name: str) -> int | float | None:
        found = self.keywords.get(name)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None


def resolve(schema: Any, root: Any) -> FieldSchema:
    """Resolve the schema of one value; keywords without a form equivalent are checked when the data is submitted."""
    keywords, nullable = _dereference(schema, root), False
    for name in ("anyOf", "oneOf"):
        parts = [_dereference(part, root) for part in keywords.get(name) or ()]
        others = [part for part in parts if part.get("type") != "null"]
        if len(parts) == len(others) + 1 == 2:
            nullable = True
            keywords = {**others[0], **{key: value for key, value in keywords.items() if key != name}}
    kinds = keywords.get("type")
    if isinstance(kinds, list) and len(rest := [kind for kind in kinds if kind != "null"]) == 1:
        nullable = nullable or len(rest) < len(kinds)
        keywords = {**keywords, "type": rest[0]}
    return FieldSchema(keywords, nullable)


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _dereference(schema: Any, root: Any) -> Mapping[str, Any]:
    """Return a schema merged with its references into the same document; sibling keywords win."""
    keywords = schema if isinstance(schema, dict) else EMPTY
    for _ in range(MAX_REFERENCES):
        parts = keywords.get("allOf")
        if isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            keywords = {**parts[0], **{key: value for key, value in keywords.items() if key != "allOf"}}
        elif isinstance(reference := keywords.get("$ref"), str):
            keywords = {
                **_pointer_target(root, reference),
                **{key: value for key, value in keywords.items() if key != "$ref"},
            }
        else:
            return keywords
    return EMPTY


def _pointer_target(root: Any, reference: str) -> Mapping[str, Any]:
    """Return the target of a JSON pointer; other documents and anchors are not followed."""
    target, (document, hash, path) = root, reference.partition("#")
    if document or not hash or (path and not path.startswith("/")):
        return EMPTY
    for step in path.split("/")[1:]:
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target if isinstance(target, dict) else EMPTY
