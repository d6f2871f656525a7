"""Arguments keep their exact text through the MCP library, which would convert some of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import Invalid, Malformed
from interlock.faces.mcp.arguments import Message, members, message, scalars, unsealed

texts = st.text(st.characters(exclude_categories=()))  # lone surrogates too
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def through_the_library(text: str) -> dict[str, str]:
    """What a tool gets of a message, as the library reads and hands it on."""
    arguments = json.loads(message(text).text)["params"]["arguments"]
    arguments_text = json.dumps(arguments, ensure_ascii=False)
    arguments_text.encode()  # every client can send and read it
    return unsealed(json.loads(arguments_text))


@given(st.dictionaries(texts, values, max_size=4), st.sampled_from([None, 1, 4]))
def test_arguments_round_trip_unchanged(arguments: dict[str, object], indent: int | None) -> None:
    written = {name: json.dumps(value, indent=indent) for name, value in arguments.items()}
    inner = " , ".join(f"{json.dumps(name)} : {value}" for name, value in written.items())
    text = f'{{"jsonrpc":"2.0", "id" : 7,"method":"tools/call","params":{{"name":"t", "arguments" : {{ {inner} }} }} }}'
    assert message(text)[1:] == ("tools/call", "7", None)
    assert through_the_library(text) == written


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "[]", "7", "{", '{"method":"tools/call"}', '{"method":"tools/call","params":[]}', '{"id":1,"id":2}',
        '{"method":7}x', "[" * 100_000, '{"a":' * 100_000, "\ufeff{}",
    ],
)  # fmt: skip
def test_a_message_that_is_not_a_call_is_left_to_the_library(text: str) -> None:
    assert message(text) == Message(text)


def test_a_message_is_identified_by_method_and_id() -> None:
    listing = '{"id":"a","method":"tools/list"}'
    assert message(listing) == Message(listing, "tools/list", '"a"')
    cancelled = '{"method":"notifications/cancelled","params":{"requestId":3}}'
    assert message(cancelled) == Message(cancelled, "notifications/cancelled", None, "3")


def test_a_duplicate_name_is_rejected_even_when_escaped() -> None:
    for text in ('{"a":1,"a":2}', '{"a":1,"\\u0061":2}'):
        with pytest.raises(Malformed):
            members(text)
        with pytest.raises(Malformed):
            unsealed({"interlock": text})


def test_a_marker_that_the_library_could_not_have_produced_is_an_ordinary_argument() -> None:
    assert unsealed({"interlock": 1}) == {"interlock": "1"}
    assert unsealed({"interlock": "{}", "b": 2}) == {"interlock": '"{}"', "b": "2"}
    assert unsealed(None) == {}


def test_only_scalars_are_allowed_in_a_query() -> None:
    fields = members('{"a":[1.50,true,"x"],"b":null,"c":{},"d":[[]],"e":[null]}')
    assert scalars(fields, "a") == ["1.50", "true", "x"]
    assert scalars(fields, "b") == scalars(fields, "absent") == []
    for name in "cde":
        with pytest.raises(Invalid):
            scalars(fields, name)
