"""JSON text of every kind, good and odd, and the guards that judge it."""

import json
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from interlock.domain.json_text import check, sanitize
from interlock.errors import Error

LIMIT = 1 << 22
HIGH, LOW = "\ud83d", "\ude00"

fast = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def checked(text: str | bytes) -> str:
    return check(text, what="payload", limit=LIMIT)


def sanitized(text: str | bytes) -> tuple[str, bool]:
    return sanitize(text, what="payload", limit=LIMIT)


GUARDS: list[Callable[[str], object]] = [checked, sanitized]


def rejection(guard: Callable[[str], object], text: str) -> tuple[type[Error], str] | None:
    try:
        guard(text)
    except Error as error:
        return type(error), getattr(error, "pointer", "")
    return None


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(), inner, max_size=6),
    max_leaves=15,
)
odd_strings = st.text(
    st.sampled_from(["a", "\\", '"', "\ud800", HIGH, LOW, "\U0001f600", "\0", "u", "d", "8", "~", "/", "\ufffd"]),
    max_size=6,
)
odd_values = st.recursive(
    st.integers(-(2**64), 2**64) | st.floats() | odd_strings,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(odd_strings, inner, max_size=4),
    max_leaves=12,
)
odd_texts = st.builds(
    lambda value, ascii_only, indent: json.dumps(value, ensure_ascii=ascii_only, indent=indent),
    odd_values,
    st.booleans(),
    st.sampled_from([None, 1]),
)
FRAGMENTS = (
    *'{}[],:"\\ \n-.0',
    *("1", "12", "01", "1.5", "-0", "1e5", "1e400", "-1E+309", "9223372036854775808", "-9223372036854775808"),
    *("true", "null", "NaN", "-Infinity", "tru", '"a"', '"a":', '"\\u0061":', '{"a":1,', '"b":[', '"~/"'),
    *("\\n", "\\u", "\\ud800", "\\uDC00", "\\ud83d\\ude00", "\\\\ud800", "\\u12"),
    *("\ud800", "\u00e9", "\ufeff", "\x00"),
)
soups = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
# Well-formed apart from its leaves, with keys that repeat more often than not.
strings = st.lists(
    st.sampled_from(["a", "\\u0061", "\\\\", '\\"', "\\ud83d", "\\uDE00", HIGH, LOW, "\ufffd", "[", "}", "~", "\\/"]),
    max_size=3,
).map(lambda parts: '"' + "".join(parts) + '"')
structured = st.recursive(
    strings | st.sampled_from(["1", " true ", "-1e400", "99999999999999999999", "NaN", "0.5", "[ ]", "{\n}"]),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[{','.join(items)}]")
        | st.lists(st.tuples(strings, inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{key} :{value}" for key, value in pairs) + "}"
        )
    ),
    max_leaves=10,
)
any_text = st.text(st.characters(codec=None))
