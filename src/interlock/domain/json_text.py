"""Validation of JSON text from users. It is checked here once and then stored byte for byte."""

import json
import math
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from functools import lru_cache
from itertools import accumulate, count
from operator import sub
from typing import Any, NoReturn

from interlock.errors import Invalid, Malformed, TooLarge

MAX_DEPTH = 64

_SPACE = " \t\n\r"
_SPACES = re.compile(f"[{_SPACE}]*")
_POINTER_MAX = 1000

# Numbers that may exceed an int or a float: 300 or more digits, or an exponent of three or more digits.
_LARGE_NUMBER = re.compile(r"\d{300}|[eE][+-]?\d{3}")

_WIDE = Context(Emax=MAX_EMAX, Emin=MIN_EMIN)

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# Only for the flattened text of a well-formed document: every backslash starts an escape and four hex digits follow
# each "u", so the two neighbors of an escape show whether it is half of a pair.
_LONE_ESCAPE = re.compile(r"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F]..(?<!\\u[dD][89abAB]..\\u[dD][c-fC-F]..))")
# Only for flattened text, where a quote always opens or closes a string.
_TOKEN = re.compile(r'"[^"]*"|[\[\]{},]|[^\s"\[\]{},:]+')

# Brackets become steps (2 for an opening one, 0 for a closing one), quotes stay, the rest is deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x02\x02\x00\x00")
_NO_STEP = bytes(set(range(256)) - set(b'[{]}"'))

NAME_RULE = "1 to 200 visible characters, and neither . nor .."
_NO_NAME = frozenset({"Cc", "Cs", "Zl", "Zp"})
# Zero-width and bidirectional control characters: with them, two different names could look the same.
_DECEIVING = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
# HTTP clients resolve these path segments, so a resource with such a name would be unreachable.
_NO_SEGMENT = frozenset({".", ".."})
_UNSEEN = frozenset({"Cf", "Co", "Cn", "Zs"})

_Path = list[str | int | None]


class _Rejected(ValueError):
    """A value that the `json` module accepts and this module rejects."""


def _pairs(pairs: list[tuple[str, object]]) -> None:
    """Reject an object with duplicate keys."""
    if len(dict(pairs)) != len(pairs):
        raise _Rejected


def _sanitizable_pairs(pairs: list[tuple[str, object]]) -> None:
    """Reject an object with duplicate keys, unless sanitizing may have caused them."""
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen and _REPLACEMENT not in key:
            raise _Rejected
        seen.add(key)


def _constant(name: str) -> NoReturn:
    """Reject NaN and the infinities, which are not JSON."""
    raise _Rejected


# Validate only: discard objects while parsing, and keep numbers as text because they may have any size.
_STRICT = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=str, parse_float=str, parse_constant=_constant)
_SANITIZABLE = json.JSONDecoder(
    object_pairs_hook=_sanitizable_pairs, parse_int=str, parse_float=str, parse_constant=_constant
)
_SYNTAX = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def check(text: str | bytes, *, what: str, limit: int) -> str:
    """Return the text unchanged, or raise if it is too large, not JSON, or ambiguous across parsers."""
    known, odd = _read(text, what, limit)
    _judge(known, what, lone=True)
    if odd or _has_lone_escape(known):
        raise _explain(known, what, lone=True)
    return known


def measured(text: bytes, *, what: str, limit: int) -> str:
    """Return the text, or raise if it is too large; it must be part of a text that was already checked."""
    if len(text) > limit:
        raise TooLarge(what, len(text), limit)
    return text.decode()


def sanitize(text: str | bytes, *, what: str, limit: int) -> tuple[str, bool]:
    """Like `check`, but replace lone surrogates with U+FFFD and return whether there were any."""
    # Keys that become equal only by sanitizing all stay in the text, in order; most parsers use the last one.
    # Rejecting them would lose a finish. Renaming them would change more than surrogates and could exceed the limit,
    # while a replacement has the size of what it replaces. A sanitized text may be sanitized again (client, then
    # server), so duplicate keys are accepted if they contain a replacement character.
    known, odd = _read(text, what, limit, sanitizes=True)
    _judge(known, what, lone=False)
    sanitized = odd
    if _has_lone_escape(known):
        sanitized = True
        pieces: list[str] = []
        start = 0
        for match in _LONE_ESCAPE.finditer(_flatten(known)):
            pieces += known[start : match.start()], "\\ufffd"
            start = match.end()
        known = "".join(pieces) + known[start:]
    return (_SURROGATE.sub(_REPLACEMENT, known) if odd else known), sanitized


def sanitize_text(value: str) -> tuple[str, bool]:
    """Replace lone surrogates in a plain string with U+FFFD and return whether there were any."""
    if value.isascii():
        return value, False
    sanitized, times = _SURROGATE.subn(_REPLACEMENT, value)
    return sanitized, times > 0


def loads(text: str | bytes) -> Any:
    """Parse a checked JSON text; a number that exceeds both int and float becomes a Decimal."""
    text = text if isinstance(text, str) else text.decode()
    if _LARGE_NUMBER.search(text) is None:
        return json.loads(text)
    return json.loads(text, parse_int=_whole, parse_float=_real)


def dumps(value: Any) -> str:
    """Serialize plain values; integers may have more digits than Python's int-to-str limit allows."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(key)}:{dumps(part)}" for key, part in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(dumps, value)) + "]"
        case int() if abs(value) >= 2**64:
            return str(Decimal(value))
    return json.dumps(value, allow_nan=False)


def _whole(digits: str) -> int | Decimal:
    # Python limits the digits it converts, because the conversion takes quadratic time; the limit is configurable.
    most = sys.get_int_max_str_digits()
    return int(digits) if not most or len(digits) <= most else Decimal(digits)


def _real(digits: str) -> float | Decimal:
    value = float(digits)
    if math.isfinite(value):
        return value
    try:
        return Decimal(digits)
    except InvalidOperation:  # the exponent exceeds even that of a Decimal
        return Decimal(value).next_toward(0, _WIDE)


def members(text: str) -> Iterator[tuple[str, str]]:
    """Yield the members of a well-formed object: each name, and its value as unparsed text."""
    at = after_space(text, 0)
    if text[at] != "{":
        raise ValueError("this is not an object")
    at = after_space(text, at + 1)
    while text[at] != "}":
        name, at = _SYNTAX.raw_decode(text, at)
        start = after_space(text, after_space(text, at) + 1)
        _, end = _SYNTAX.raw_decode(text, start)
        yield name, text[start:end]
        at = after_space(text, end)
        if text[at] == ",":
            at = after_space(text, at + 1)


def after_space(text: str, at: int) -> int:
    """Return the position after the whitespace at `at`."""
    found = _SPACES.match(text, at)
    return at if found is None else found.end()


def is_visible_name(value: str, *, limit: int = 200) -> bool:
    """Return whether a string is a valid name: short, on one line, not padded, without deceptive characters."""
    return 1 <= len(value) <= limit and _is_visible(value)


def is_blank(value: str) -> bool:
    """Return whether a text is empty or has only whitespace, control and zero-width characters."""
    return all(c.isspace() or unicodedata.category(c) in _UNSEEN or unicodedata.category(c) == "Cc" for c in value)


@lru_cache(1024)  # most requests use the same few types and workers
def _is_visible(value: str) -> bool:
    if value != value.strip():
        return False
    if value.isascii():
        return value.isprintable() and value not in _NO_SEGMENT
    # Joiners and similar characters occur in real names, so reject them only if the name has no other characters.
    if _DECEIVING.search(value):
        return False
    categories = set(map(unicodedata.category, value))
    return categories.isdisjoint(_NO_NAME) and not categories <= _UNSEEN


def _read(text: str | bytes, what: str, limit: int, *, sanitizes: bool = False) -> tuple[str, bool]:
    """Check the size in UTF-8, then return the text as a string and whether it has raw surrogates."""
    odd = False
    if isinstance(text, bytes) or text.isascii():
        size = len(text)
    else:
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            odd = True
            size = len(text.encode(errors="surrogatepass"))
    if size > limit:
        raise TooLarge(what, size, limit)
    if isinstance(text, bytes):
        text, odd = _decoded(text, what, sanitizes=sanitizes)
    if text.startswith("\ufeff"):
        raise Malformed(f"{what} starts with a byte order mark")
    return text, odd


def _decoded(data: bytes, what: str, *, sanitizes: bool) -> tuple[str, bool]:
    """Return the bytes as a string and whether it has surrogates; those are invalid UTF-8, accepted if `sanitizes`."""
    try:
        return data.decode(), False
    except UnicodeDecodeError as error:
        if sanitizes:
            with suppress(UnicodeDecodeError):
                return data.decode(errors="surrogatepass"), True
        raise Malformed(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None


def _judge(text: str, what: str, *, lone: bool) -> None:
    """Reject invalid JSON; with `lone`, use the strict rules of `check` instead of those of `sanitize`."""
    # Depth 65 needs 65 opening and 65 closing brackets, so most texts are too short and need no count.
    if len(text) > 2 * MAX_DEPTH and text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise Malformed(f"{what} is nested deeper than {MAX_DEPTH} levels")
    body = text.strip(_SPACE)
    try:
        # Faster than decode(), whose two searches for whitespace cost as much as reading a small object.
        _, end = (_STRICT if lone else _SANITIZABLE).raw_decode(body)
    except ValueError:
        raise _explain(text, what, lone=lone) from None
    if end != len(body):
        raise _explain(text, what, lone=lone)


def _flatten(text: str) -> str:
    """Blank out escaped backslashes and quotes without moving other characters."""
    # A run of backslashes starts with an escape, so replacing pairs from the left matches complete escapes only.
    return text.replace("\\\\", "__").replace('\\"', "__") if "\\" in text else text


def _depth(text: str) -> int:
    """Return how deep the brackets outside strings nest, at least up to the first syntax error."""
    # Adjacent quotes have no brackets between them, and removing both keeps the parity.
    steps = _flatten(text).encode(errors="surrogatepass").translate(_STEPS, _NO_STEP).replace(b'""', b"")
    if b'"' in steps:
        steps = b"".join(steps.split(b'"')[::2])
    return max(map(sub, accumulate(steps), count(1)), default=0)


def _has_lone_escape(text: str) -> bool:
    """Return whether a well-formed text has an escaped surrogate that is not half of a pair."""
    return "\\" in text and ("\\ud" in text or "\\uD" in text) and _LONE_ESCAPE.search(_flatten(text)) is not None


def _explain(text: str, what: str, *, lone: bool) -> Malformed | Invalid:
    """Return the error for a rejected text: its syntax error, or else the first violation and its location."""
    try:
        _SYNTAX.decode(text)
    except json.JSONDecodeError as error:
        return Malformed(f"{what} is not JSON: {error}")
    # Per open container: `path` has its current key or index (None: a key comes next), and `keys` has the keys seen
    # so far (None: an array).
    path: _Path = []
    keys: list[set[str] | None] = []
    for match in _TOKEN.finditer(_flatten(text)):
        token = text[match.start() : match.end()]
        if token in "[{":
            path.append(0 if token == "[" else None)
            keys.append(None if token == "[" else set())
        elif token in "]}":
            del path[-1], keys[-1]
        elif token == ",":
            step = path[-1]
            path[-1] = step + 1 if isinstance(step, int) else None
        elif token[0] == '"':
            value = _SYNTAX.decode(token) if "\\" in token else token[1:-1]
            seen = keys[-1] if keys else None
            if seen is not None and path[-1] is None:
                path[-1] = value
                if value in seen and (lone or _REPLACEMENT not in value):
                    return _at(Malformed, f"{what} has a duplicate key", path)
                seen.add(value)
            if lone and _SURROGATE.search(value):
                return _at(Invalid, f"{what} has a lone surrogate", path)
        elif token in ("NaN", "Infinity", "-Infinity"):
            return _at(Malformed, f"{what} has {token}, which is not JSON,", path)
    return Malformed(f"{what} is refused")


def _at(kind: type[Malformed | Invalid], message: str, path: _Path) -> Malformed | Invalid:
    """Return an error with its location, or the nearest container if keys make the pointer too long."""
    pointer = ""
    for step in path:
        # The pointer becomes part of a response, which must be valid UTF-8.
        part, _ = sanitize_text("/" + str(step).replace("~", "~0").replace("/", "~1"))
        if len(pointer) + len(part) > _POINTER_MAX:
            break
        pointer += part
    # The message may be printed to a terminal or a log, where raw control characters of a key are dangerous.
    position = pointer if pointer.isprintable() else json.dumps(pointer)
    return kind(f"{message} at {position or 'the top'}", pointer=pointer)
