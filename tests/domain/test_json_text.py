"""The guard over JSON text: what it accepts, what it rejects, and the position in its errors."""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interlock.domain.json_text import MAX_DEPTH, check, dumps, loads, members, sanitize
from interlock.errors import Error, Invalid, Malformed, TooLarge
from tests.domain.json_texts import (
    GUARDS,
    HIGH,
    LOW,
    any_text,
    checked,
    fast,
    odd_texts,
    rejection,
    sanitized,
    soups,
    structured,
    values,
)
from tests.support.json_oracle import Oracle


@fast
@given(st.dictionaries(st.text(), values), st.booleans(), st.sampled_from([None, 2]))
def test_the_members_of_an_object_are_their_source_texts(
    value: dict[str, object], ascii_only: bool, indent: int | None
) -> None:
    text = " " + json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found = list(members(text))
    assert [name for name, _ in found] == list(value)
    assert {name: json.loads(part) for name, part in found} == value
    assert all(part in text for _, part in found)


def test_a_member_keeps_every_digit_and_space() -> None:
    text = '{ "a" : 1.10 ,"b":[ 1,2 ] , "c":{"d" : "}"}}'
    assert dict(members(text)) == {"a": "1.10", "b": "[ 1,2 ]", "c": '{"d" : "}"}'}
    with pytest.raises(ValueError, match="object"):
        list(members("[]"))


@fast
@given(values, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", " ", "\n\t\r "]))
def test_dumped_values_are_accepted_and_returned_unchanged(
    value: object, ascii_only: bool, indent: int | None, space: str
) -> None:
    text = space + json.dumps(value, ensure_ascii=ascii_only, indent=indent) + space
    assert checked(text) == text
    assert checked(text.encode()) == text
    assert sanitized(text) == (text, False)


@fast
@given(soups | odd_texts | structured)
@example('{"a":1,"\\u0061":1e400}')
@example('["\\ud800",NaN]')
@example("\ufeff1")
def test_result_and_pointer_agree_with_a_slow_reference_parser(text: str) -> None:
    assert rejection(checked, text) == Oracle(text).verdict()
    assert rejection(sanitized, text) == Oracle(text).verdict(sanitizing=True)


@fast
@given(any_text | soups)
@example("[" * 5000)
@example('{"a":' * 5000)
@example("1" * 5000)
def test_text_of_any_kind_raises_nothing_but_known_errors(text: str) -> None:
    for guard in GUARDS:
        rejection(guard, text)


@fast
@given(st.binary() | soups.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_bytes_of_any_kind_raise_nothing_but_known_errors(data: bytes) -> None:
    for guard in (checked, sanitized):
        with suppress(Error):
            guard(data)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "null",
        '""',
        ' {"a" : 1}\r\n\t ',
        '"\\u0000"',
        '"\\ud83d\\ude00"',
        '"\\uD83D\\uDE00"',
        '"\\\\ud800"',
        '"\\\\\\\\udfff"',
        '"\\\\\\ud83d\\ude00"',
        '"\U0001f600\u00e9"',
        "9223372036854775808",
        "[-9223372036854775809,1.10,1E+2]",
        '{"a":{"b":1e400}}',
        "[1,-1e131073,1e-99999999999999999999]",
        '{"n":-' + "9" * 5000 + "}",
        "9" * 400 + ".5",
        "-0",
        "1.7976931348623157e308",
        "1e-400",
        "0." + "1" * 5000,
        '{"a":{"a":1},"b":[{"a":1},{"a":1}]}',
        '{"a":1,"A":2,"":3}',
        '["[[{{", "\\"[", "\\\\"]' + " " * 200,
    ],
)
def test_strict_json_is_kept_byte_for_byte(text: str) -> None:
    assert checked(text) == text
    assert checked(text.encode()) == text
    assert sanitized(text) == (text, False)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1,]",
        '{"a":1,}',
        "{'a':1}",
        "{a:1}",
        "// no\n1",
        "1 2",
        "01",
        "+1",
        ".5",
        "1.",
        "0x1",
        "tru",
        "True",
        '"\n"',
        '"\x00"',
        '"\\x"',
        '"\\u12"',
        '"\\ud8"',
        '"a',
        '"\\"',
        "\ufeff{}",
        "\u00a01",
        "\ud800",
        "\u0661",
        "[" * 65,
    ],
)
@pytest.mark.parametrize("guard", GUARDS)
def test_text_that_is_not_json_is_malformed(guard: Callable[[str], object], text: str) -> None:
    assert rejection(guard, text) == (Malformed, "")


@pytest.mark.parametrize(
    ("text", "kind", "pointer"),
    [
        ('{"a":1,"a":2}', Malformed, "/a"),
        ('{"a":1,"\\u0061":2}', Malformed, "/a"),
        ('{"b":[0,{"x":1,"y":2,"x":3}]}', Malformed, "/b/1/x"),
        ('{"a/b~c":{"":1,"":2}}', Malformed, "/a~1b~0c/"),
        ("NaN", Malformed, ""),
        ("[1,-Infinity]", Malformed, "/1"),
        ('{"a":[Infinity]}', Malformed, "/a/0"),
        ('{"s]":["}\\"",{"n":NaN}]}', Malformed, "/s]/1/n"),
    ],
)
@pytest.mark.parametrize("guard", GUARDS)
def test_violations_are_named_with_their_pointer(
    guard: Callable[[str], object], text: str, kind: type[Error], pointer: str
) -> None:
    assert rejection(guard, text) == (kind, pointer)
    with pytest.raises(kind, match=r"^payload ") as caught:
        guard(text)
    assert (pointer or "at the top") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ('"\\ud800"', ""),
        ('"\\uDFFF"', ""),
        ('["\\ude00\\ud83d"]', "/0"),
        ('["ok","\\ud83d\\ud83d\\ude00"]', "/1"),
        ('["\\ud83d\\ude00\\ude00"]', "/0"),
        ('["\\ud83d\\\\ude00"]', "/0"),
        ('["\\\\ud83d\\ude00"]', "/0"),
        ('{"a":"\ud800"}', "/a"),
        ('{"k\\ud800":1}', "/k\ufffd"),
        ('{"k\udfff":[1]}', "/k\ufffd"),
        ('"\\ud83d' + LOW + '"', ""),
        ('"' + HIGH + '\\ude00"', ""),
        ('"' + HIGH + LOW + '"', ""),
    ],
)
def test_lone_surrogates_are_invalid(text: str, pointer: str) -> None:
    assert rejection(checked, text) == (Invalid, pointer)


def test_syntax_errors_come_before_any_other_violation() -> None:
    assert rejection(checked, '["\\ud800",') == (Malformed, "")


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80\xff"', b'"\xc0\x80"', b"\xef\xbb\xbf{}", b"{\x00}\x00"]
)
def test_bytes_that_are_not_plain_utf8_are_malformed(data: bytes) -> None:
    for guard in (checked, sanitized):
        with pytest.raises(Malformed):
            guard(data)


def test_bytes_of_a_surrogate_are_malformed_unless_they_are_sanitized() -> None:
    with pytest.raises(Malformed):
        checked(b'"\xed\xa0\x80"')
    assert sanitized(b'"a\xed\xa0\x80\xed\xb8\x80"') == ('"a\ufffd\ufffd"', True)


def test_a_byte_order_mark_is_named() -> None:
    for text in ("\ufeff{}", b"\xef\xbb\xbf{}"):
        with pytest.raises(Malformed, match="byte order mark"):
            checked(text)


@pytest.mark.parametrize("text", ['"abc"', '"\u00e9\u20ac"', '"\U0001f600"', '"\ud800"'])
def test_size_is_counted_in_utf8_bytes(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    assert sanitize(text, what="result", limit=size)
    for guard in (check, sanitize):
        with pytest.raises(TooLarge):
            guard(text, what="result", limit=size - 1)
        with pytest.raises(TooLarge):
            guard(text.encode("utf-8", "surrogatepass"), what="result", limit=size - 1)


def nest(depth: int) -> list[str]:
    pairs, rest = divmod(depth, 2)
    return [
        "[" * depth + "]" * depth,
        '{"a":' * depth + "1" + "}" * depth,
        '[{"]":' * pairs + ("[1]" if rest else "1") + "}]" * pairs,
        '["\\\\","\\"]",' + "[" * (depth - 1) + '"]]]"' + "]" * depth,
        "[" + "[],{}," * 300 + "[" * (depth - 1) + "]" * depth,
    ]


@pytest.mark.parametrize("index", range(5))
def test_depth_64_is_accepted_and_65_is_malformed(index: int) -> None:
    text = nest(MAX_DEPTH)[index]
    assert json.loads(text)
    assert checked(text) == text
    deeper = nest(MAX_DEPTH + 1)[index]
    assert json.loads(deeper)
    assert rejection(checked, deeper) == (Malformed, "")
    assert rejection(sanitized, deeper) == (Malformed, "")


@pytest.mark.parametrize("text", ['"' + "[" * 1000 + '"', '{"' + "{" * 1000 + '":"\\"' + "[" * 1000 + '\\\\"}'])
def test_brackets_inside_strings_do_not_count_as_depth(text: str) -> None:
    assert checked(text) == text


def test_pointer_of_long_keys_stops_at_an_enclosing_value() -> None:
    assert rejection(checked, '{"a":{"' + "k" * 5000 + '":NaN}}') == (Malformed, "/a")


def test_control_characters_of_a_key_stay_out_of_the_message() -> None:
    with pytest.raises(Malformed) as caught:
        checked('{"\\u001b[2J\\n":NaN}')
    assert str(caught.value).isprintable()


MEGA = 1 << 20


@pytest.mark.parametrize(
    "text",
    [
        "[" * MEGA,
        '{"a":' * (MEGA // 5),
        '"' + "\\" * MEGA,
        "[" * 70 + "\\" * MEGA,
        '"' + "\\\\" * (MEGA // 2) + '\\ud800"',
        "[" * 70 + '"' + '\\"' * (MEGA // 2),
        '"' * MEGA,
        '"' + "\\ud800" * (MEGA // 6) + '"',
        '"' + "\\ud83d\\ude00" * (MEGA // 12) + '\\ude00"',
        '"' + "\ud800" * (MEGA // 3) + '"',
        "[" + "1" * MEGA + ",NaN]",
        "[" + "1" * MEGA + ".0,NaN]",
        "[1e" + "9" * MEGA + ",NaN]",
        "[" + "1," * (MEGA // 4) + "NaN]",
        '{"' + "k" * (MEGA // 2) + '":1,"' + "k" * (MEGA // 2) + '":2}',
        ('{"' + "k" * (MEGA // 64) + '":') * 63 + "NaN" + "}" * 63,
        " " * MEGA,
        "[" + " " * MEGA + "NaN]",
    ],
    ids=range(18),
)
def test_hostile_megabytes_are_parsed(text: str) -> None:
    """A pass that is not linear would make this test hang."""
    verdicts = [rejection(guard, text) for guard in GUARDS]
    assert verdicts[0] is not None


def test_a_number_that_neither_an_int_nor_a_float_holds_is_read_exactly() -> None:
    text = '{"a":1e400,"b":[-1E+400,' + "7" * 5000 + ',123456789012345678901234567890],"c":1.5,"d":1e300,"e":1e-400}'
    value = loads(text)
    assert value["a"] == Decimal("1e400")
    assert value["b"] == [Decimal("-1e400"), Decimal("7" * 5000), 123456789012345678901234567890]
    assert (value["c"], value["d"], value["e"]) == (1.5, 1e300, 0.0)
    assert loads("[1e99999999999999999999]")[0] > Decimal("1e999999999999")
    assert loads(b'{"a":1}') == {"a": 1}


def test_an_integer_of_any_size_is_written_with_all_its_digits() -> None:
    value = {"a": [10**6000 + 7, -(2**64), 1.5, None, True, "\u00e4"], "b": {}}
    text = dumps(value)
    assert f'[1{"0" * 5999}7,-18446744073709551616,1.5,null,true,"\\u00e4"]' in text
    with pytest.raises(ValueError, match="JSON"):
        dumps([math.nan])
