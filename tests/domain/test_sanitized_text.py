"""Text that is sanitized rather than rejected: lone surrogates are replaced, and nothing else."""

import json

import pytest
from hypothesis import example, given

from interlock.domain.json_text import sanitize_text
from interlock.errors import Malformed
from tests.domain.json_texts import (
    HIGH,
    LOW,
    any_text,
    checked,
    fast,
    odd_texts,
    rejection,
    sanitized,
    structured,
)
from tests.support.json_oracle import Oracle


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"\\ud800"', '"\\ufffd"'),
        ('"\\uDFFFx"', '"\\ufffdx"'),
        ('"\ud800"', '"\ufffd"'),
        ('"\\ud83d\\ud83d\\ude00\\ude00"', '"\\ufffd\\ud83d\\ude00\\ufffd"'),
        ('"\\\\\\ud800\\\\ud800"', '"\\\\\\ufffd\\\\ud800"'),
        ('"\\"\\ud800\\""', '"\\"\\ufffd\\""'),
        ('"\\\\ud83d\\ude00"', '"\\\\ud83d\\ufffd"'),
        ('"' + HIGH + '\\ude00"', '"\ufffd\\ufffd"'),
        ('"' + HIGH + LOW + '"', '"\ufffd\ufffd"'),
        (' {"\\ud800" : 1.0e0}\n', ' {"\\ufffd" : 1.0e0}\n'),
    ],
)
def test_sanitizing_replaces_lone_surrogates_and_nothing_else(text: str, expected: str) -> None:
    assert sanitized(text) == (expected, True)


def scrub(value: object) -> object:
    """Replace surrogates in every string of a value."""
    if isinstance(value, str):
        return "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in value)
    if isinstance(value, list):
        return [scrub(item) for item in value]
    if isinstance(value, dict):
        return {scrub(key): scrub(item) for key, item in value.items()}
    return value


def keys_stay_apart(value: object) -> bool:
    if isinstance(value, list):
        return all(map(keys_stay_apart, value))
    if isinstance(value, dict):
        return len({scrub(key) for key in value}) == len(value) and all(map(keys_stay_apart, value.values()))
    return True


@fast
@given(odd_texts | structured)
def test_sanitized_text_means_the_same_with_surrogates_replaced(text: str) -> None:
    if rejection(sanitized, text):
        return
    result, flag = sanitized(text)
    sent = json.loads(text)
    oracle = Oracle(text)
    oracle.verdict()
    assert flag == bool(oracle.lone)
    assert sanitized(result) == (result, False)
    assert len(result.encode()) == len(text.encode("utf-8", "surrogatepass"))
    if keys_stay_apart(sent) and not oracle.replaced:
        assert json.loads(result) == scrub(sent)
        assert checked(result) == result


def test_keys_that_sanitizing_makes_equal_are_all_kept() -> None:
    assert sanitized('{"\\ud800":1,"\\udfff":2,"\\ufffd":3}') == ('{"\\ufffd":1,"\\ufffd":2,"\\ufffd":3}', True)


def test_a_sanitized_text_is_accepted_again_though_keys_became_equal() -> None:
    text, _ = sanitized('[{"\\ud800":1,"\\udfff":2,"b":3}]')
    assert sanitized(text) == (text, False)
    assert rejection(checked, text) == (Malformed, "/0/\ufffd")
    assert rejection(sanitized, '{"\\ufffd":1,"\ufffd":2,"b":3,"b":4}') == (Malformed, "/b")


def test_keys_equal_as_sent_are_still_rejected_when_sanitizing() -> None:
    assert rejection(sanitized, '{"\\ud800":1,"\\uD800":2}') == (Malformed, "/\ufffd")


@fast
@given(any_text)
@example(HIGH + LOW)
@example("\\ud800")
def test_sanitized_plain_strings_encode_and_keep_every_other_character(value: str) -> None:
    result, flag = sanitize_text(value)
    assert result == scrub(value)
    assert flag == (result != value)
    assert result.encode().decode() == result
