"""Schemas that users register: validating a value is fast for every schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from interlock.engine.schemas import MAX_FAULTS, judge
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


def rejection(schema: Any, value: Any) -> Invalid:
    with pytest.raises(Invalid) as caught:
        judge(json.dumps(schema), json.dumps(value), what="payload")
    return caught.value


@pytest.mark.parametrize("word", ["anyOf", "allOf", "oneOf"])
@pytest.mark.parametrize("value", [1, "x"])
def test_exponential_references_are_never_followed(word: str, value: Any) -> None:
    assert rejection(ladder(60, word), value).pointer == "/payload"


def test_references_that_multiply_with_the_depth_of_a_value_are_never_followed() -> None:
    twice = {"properties": {"left": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["x"]}
    assert "too long" in str(rejection(twice, nested(60)))


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}, {"$dynamicRef": "#a", "$anchor": "a"}])
def test_a_circular_reference_is_never_followed(schema: dict[str, Any]) -> None:
    rejection(schema, 1)


def test_a_recursive_schema_is_followed_to_the_depth_of_the_value() -> None:
    judge(json.dumps(TREE), json.dumps(nested(60)), what="payload")
    fault = rejection(TREE, {"left": {"right": {"middle": 1}}})
    assert fault.pointer == "/payload/left/right"


def test_a_large_value_may_have_a_recursive_schema() -> None:
    rows = [{"a": n, "b": [str(n), n]} for n in range(2000)]
    judge(json.dumps(JSON_VALUE), json.dumps(rows), what="payload")


def test_invalid_places_are_named_where_that_is_not_too_expensive() -> None:
    words = {"type": "array", "items": {"enum": [str(n) for n in range(30_000)]}}
    small = {"type": "array", "items": {"enum": ["a"]}}
    assert len(rejection(small, ["x"] * 50).faults) == MAX_FAULTS
    assert [fault.pointer for fault in rejection(words, ["x"] * 50_000).faults] == ["/payload"]
    of_many_kinds = {"items": {"anyOf": [{"const": n} for n in range(150)]}}
    assert [fault.pointer for fault in rejection(of_many_kinds, ["x" * 200_000]).faults] == ["/payload"]


def test_a_part_may_be_referenced_by_its_anchor() -> None:
    schema = {
        "$id": "https://example.com/s",
        "items": {"$ref": "#word"},
        "$defs": {"w": {"$anchor": "word", "type": "string"}},
    }
    judge(json.dumps(schema), '["a"]', what="payload")
    assert rejection(schema, [1]).pointer == "/payload/0"


def test_a_part_with_its_own_id_is_rejected() -> None:
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$id": "https://example.com/a", "type": "string"}}}
    assert rejection(schema, "x").pointer == "/schema"


def test_patterns_share_the_memory_of_a_schema() -> None:
    word = {"pattern": "^[\\p{L}\\p{N} ]{1,100}$"}
    judge(json.dumps(word), '"a word"', what="payload")
    assert rejection(word, "!").pointer == "/payload"
    many = {"allOf": [{"pattern": f"^[\\p{{L}}{n}]{{1,100}}$"} for n in range(50)]}
    assert rejection(many, "a").pointer == "/schema"
    plain = {"properties": {f"p{n}": {"pattern": "^[a-z0-9_-]{1,64}$"} for n in range(200)}}
    judge(json.dumps(plain), '{"p1": "a"}', what="payload")


@pytest.mark.parametrize(
    "pattern",
    [
        ".{0,3000}z",
        "[^z]{0,3000}z",
        "(.{0,100}){0,30}z",
        "^(.{0,100}){0,30}z",
        "(a|b)*a(a|b){400}c",
        "^(a?){0,3000}z",
        "(?x)a {0,3000} z",
        "(?m)^.{0,3000}z",
        "[]a]{0,3000}z",
        "(){0,3000}z",
        "x|^.{0,3000}z",
    ],
)
@pytest.mark.parametrize(
    ("rule", "value"),
    [
        (lambda pattern: {"pattern": pattern}, "a" * 5000),
        (lambda pattern: {"items": {"pattern": pattern}}, ["a" * 50] * 100),
        (lambda pattern: {"properties": {"a": {"allOf": [{"pattern": pattern}]}}}, {"a": "ä" * 2000}),
        (lambda pattern: {"propertyNames": {"pattern": pattern}}, {f"{n:050}": 1 for n in range(100)}),
        (lambda pattern: {"patternProperties": {pattern: {"type": "integer"}}}, {f"{n:050}": 1 for n in range(100)}),
        (lambda pattern: {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"pattern": pattern}}}, ["a" * 5000]),
    ],
)
def test_an_expensive_pattern_is_not_matched_with_a_long_text(pattern: str, rule: Any, value: Any) -> None:
    error = rejection(rule(pattern), value)
    assert "takes too long to compare with its schema: simplify" in str(error)
    assert error.pointer == "/payload"


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("^.{1,5000}$", "a" * 4000),
        ("^https?://.{0,2000}$", "https://example.com/" + "a" * 1900),
        ("^[A-Za-z0-9+/]+={0,2}$", "QUJD" * 60_000),
        ("^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "0189f7a0-7e2b-7cc1-9d43-0f5e6a7b8c9d"),
        (r"^[\w.+-]+@[\w-]+\.[\w.-]+$", "somebody@example.com"),
        ("TODO", "x" * 200_000 + "TODO"),
        (".{0,3000}z", "a" * 100 + "z"),
        ("(?i)^[a-z ]*error", "an Error"),
    ],
)
def test_ordinary_patterns_are_matched_with_ordinary_texts(pattern: str, text: str) -> None:
    judge(json.dumps({"pattern": pattern}), json.dumps(text), what="payload")
    prompt = {"name": "a", "prompt": "and, so, on: " * 15_000}
    named = {"properties": {"name": {"pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}, "id": {"pattern": "a{1,60}b"}}}
    judge(json.dumps(named), json.dumps(prompt), what="payload")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"items": {"enum": [[n] for n in range(10_000)]}}, json.dumps([[9_999]] * 10_000)),
        ({"items": {"enum": [{"a": n} for n in range(5_000)]}}, json.dumps([{"a": 4_999}] * 5_000)),
        ({"items": {"multipleOf": 1e-300}}, json.dumps([1e300] * 30_000)),
        ({"items": {"multipleOf": 0.01}}, "[" + ",".join(["1e300"] * 30_000) + "]"),
        ({"items": {"allOf": [{"type": "integer"}] * 1_000}}, json.dumps([1] * 38_000)),
        ({"items": {"maximum": 1}}, "[" + ",".join(["1e999"] * 38_000) + "]"),
    ],
)
def test_other_expensive_rules_are_not_checked_on_many_values(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid, match="takes too long to compare"):
        judge(json.dumps(schema), text, what="payload")


def test_a_schema_that_is_too_expensive_to_compile_is_rejected_with_a_correction() -> None:
    many = {"properties": {f"k{n}": {"pattern": f"^[a-z]{n}"} for n in range(501)}}
    assert "at most 500 patterns" in str(rejection(many, {}))
    assert rejection({"pattern": "|".join(map(str, range(40_000)))}, "a").pointer == "/schema"


@pytest.mark.parametrize(
    ("schema", "fits", "other"),
    [
        ({"type": "integer"}, "1" * 5000, "1.5"),
        ({"type": "integer", "multipleOf": 5}, "-" + "9" * 50 + "0", "9" * 51),
        ({"maximum": 10}, "-1e400", "1e400"),
        ({"exclusiveMinimum": 0}, "1e-999999999", "-1e-999999999"),
        ({"maximum": 1e300}, "123456789012345678901234567890", "9" * 5000),
        ({"const": 12345678901234567890123456789}, "12345678901234567890123456789", "12345678901234567890123456788"),
        ({"type": "number", "minimum": 1}, "1e999999999", "1E-999999999"),
    ],
)
def test_numbers_of_any_size_are_compared(schema: dict[str, Any], fits: str, other: str) -> None:
    judge(json.dumps(schema), fits, what="payload")
    with pytest.raises(Invalid):
        judge(json.dumps(schema), other, what="payload")
