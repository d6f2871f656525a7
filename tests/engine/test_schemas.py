"""Schemas that users register: whatever they say, to compare a value with one takes no time to speak of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.engine.schemas import MOST_FAULTS, check
from interlock.errors import Invalid

JSON_VALUE = {
    "$ref": "#/$defs/value",
    "$defs": {
        "value": {
            "anyOf": [
                {"type": ["string", "number", "boolean"]},
                {"type": "array", "items": {"$ref": "#/$defs/value"}},
                {"type": "object", "additionalProperties": {"$ref": "#/$defs/value"}},
            ]
        }
    },
}
TREE = {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}, "additionalProperties": False}


def ladder(rungs: int, word: str) -> dict[str, Any]:
    """Each rung refers to the next one twice."""
    steps = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(rungs)}
    return {"$ref": "#/$defs/d0", "$defs": steps | {f"d{rungs}": {"type": "string"}}}


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"left": value}
    return value


def refusal(schema: Any, value: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        check(json.dumps(schema), json.dumps(value), what="payload")
    return caught.value


@pytest.mark.parametrize("word", ["anyOf", "allOf", "oneOf"])
@pytest.mark.parametrize("value", [1, "x"])
def test_references_that_multiply_are_never_followed(word: str, value: Any) -> None:
    assert refusal(ladder(60, word), value).pointer == "/payload"


def test_references_that_multiply_with_the_depth_of_a_value_are_never_followed() -> None:
    twice = {"properties": {"left": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["x"]}
    assert "too long" in str(refusal(twice, nested(60)))


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"$dynamicRef": "#a", "$anchor": "a"}])
def test_a_reference_that_goes_round_in_a_circle_is_never_followed(schema: dict[str, Any]) -> None:
    refusal(schema, 1)


def test_a_schema_of_trees_is_followed_as_deep_as_they_are() -> None:
    check(json.dumps(TREE), json.dumps(nested(60)), what="payload")
    fault = refusal(TREE, {"left": {"right": {"middle": 1}}})
    assert fault.pointer == "/payload/left/right"


def test_a_large_value_may_have_a_schema_that_refers_to_itself() -> None:
    rows = [{"a": n, "b": [str(n), n]} for n in range(2000)]
    check(json.dumps(JSON_VALUE), json.dumps(rows), what="payload")


def test_places_at_fault_are_named_where_that_is_not_too_dear() -> None:
    words = {"type": "array", "items": {"enum": [str(n) for n in range(30_000)]}}
    small = {"type": "array", "items": {"enum": ["a"]}}
    assert len(refusal(small, ["x"] * 50).faults) == MOST_FAULTS
    assert [fault.pointer for fault in refusal(words, ["x"] * 50_000).faults] == ["/payload"]
    of_many_kinds = {"items": {"anyOf": [{"const": n} for n in range(150)]}}
    assert [fault.pointer for fault in refusal(of_many_kinds, ["x" * 200_000]).faults] == ["/payload"]


def test_a_part_may_be_referred_to_by_its_anchor() -> None:
    schema = {
        "$id": "https://example.com/s",
        "items": {"$ref": "#word"},
        "$defs": {"w": {"$anchor": "word", "type": "string"}},
    }
    check(json.dumps(schema), '["a"]', what="payload")
    assert refusal(schema, [1]).pointer == "/payload/0"


def test_a_part_with_an_address_of_its_own_is_refused() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://example.com/a", "type": "string"}}}
    assert refusal(schema, "x").pointer == "/schema"


def test_patterns_share_the_memory_of_a_schema() -> None:
    word = {"pattern": "^[\\p{L}\\p{N} ]{1,100}$"}
    check(json.dumps(word), '"a word"', what="payload")
    assert refusal(word, "!").pointer == "/payload"
    many = {"allOf": [{"pattern": f"^[\\p{{L}}{n}]{{1,100}}$"} for n in range(50)]}
    assert refusal(many, "a").pointer == "/schema"
    plain = {"properties": {f"p{n}": {"pattern": "^[a-z0-9_-]{1,64}$"} for n in range(200)}}
    check(json.dumps(plain), '{"p1": "a"}', what="payload")
