"""The payload of a call with plain arguments is not checked again: all that a check would reject is rejected before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import interlock
from interlock.domain import json_text
from interlock.errors import Invalid, Malformed
from interlock.sdk.context import Context
from interlock.sdk.signature import Signature
from interlock.wire import EncodedRequest
from tests.support.apps import StoreApp

NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**64), 1e308])
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(st.characters(categories=None), max_size=8)
MIXED = PLAIN | st.dictionaries(st.integers(0, 2) | st.sampled_from(["0", "1"]), PLAIN, max_size=3)


def flat(text: str, number: int | float | None, ok: bool | str = True) -> None: ...


FLAT = Signature(flat, Context)


def nested(value: dict[str, int]) -> None: ...


def untyped(value) -> None: ...  # type: ignore[no-untyped-def]


@pytest.mark.parametrize(("function", "expected"), [(flat, True), (nested, False), (untyped, False)])
def test_only_arguments_of_plain_types_make_a_payload_that_needs_no_check(function: object, expected: bool) -> None:
    assert Signature(function, Context).is_flat is expected  # type: ignore[arg-type]


@given(text=MIXED, number=MIXED, ok=MIXED)
def test_a_payload_of_plain_arguments_is_rejected_or_passes_the_check(text: object, number: object, ok: object) -> None:
    try:
        payload = FLAT.pack((text, number), {"ok": ok})
    except (Invalid, TypeError):
        return
    assert json_text.check(payload, what="payload", limit=100_000) == payload.decode()


async def test_a_payload_with_a_duplicate_key_is_rejected_at_enqueue(app: StoreApp) -> None:
    task: interlock.Task[[dict[str, int]], None] = app.task(nested)
    with pytest.raises(Malformed, match="duplicate key"):
        await task.enqueue({1: 1, "1": 2})  # type: ignore[dict-item]


async def test_only_a_request_of_this_process_goes_without_a_check(app: StoreApp) -> None:
    task = app.task(flat)
    assert type(task._request(("a", 1), {})) is EncodedRequest
    assert type(app.task(nested)._request(({"a": 1},), {})) is not EncodedRequest
