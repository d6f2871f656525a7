"""The guard over JSON text sent by users: it is judged here once and then kept byte for byte."""

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

# What an ordinary reader of JSON may not hold: a number of many digits, or with an exponent of three or more.
_LARGE_NUMBER = re.compile(r"\d{300}|[eE][+-]?\d{3}")

_WIDE = Context(Emax=MAX_EMAX, Emin=MIN_EMIN)

_SURROGATE = re.compile("[\ud800-\udfff]")
_REPLACEMENT = "\ufffd"
# For the flattened text of a well-formed document only: there every backslash starts an escape and four hex
# digits follow each "u", so whether an escape stands alone can be told from its two neighbours.
_LONE_ESCAPE = re.compile(r"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|[c-fC-F]..(?<!\\u[dD][89abAB]..\\u[dD][c-fC-F]..))")
# For flattened text too: there a quote always opens or closes a string.
_TOKEN = re.compile(r'"[^"]*"|[\[\]{},]|[^\s"\[\]{},:]+')

# Brackets become steps (2 for an opening one, 0 for a closing one), quotes stay, the rest is deleted.
_STEPS = bytes.maketrans(b"[{]}", b"\x02\x02\x00\x00")
_NO_STEP = bytes(set(range(256)) - set(b'[{]}"'))

NAME_RULE = "1 to 200 visible characters, and neither . nor .."
_NO_NAME = frozenset({"Cc", "Cs", "Zl", "Zp"})
# What has no width, or turns the text around it: two names could look alike, or like what they are not.
_DECEIVING = re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
# Of a path: every client takes these for steps, so nothing could be called by them.
_NO_SEGMENT = frozenset({".", ".."})
_UNSEEN = frozenset({"Cf", "Co", "Cn", "Zs"})

_Path = list[str | int | None]


class _Rejected(ValueError):
    """A value that the JSON module reads but this module does not take."""


def _pairs(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object in which two keys are equal."""
    if len(dict(pairs)) != len(pairs):
        raise _Rejected


def _sanitizable_pairs(pairs: list[tuple[str, object]]) -> None:
    """Refuse an object in which two keys are equal, unless mending can have made them so."""
    if len(dict(pairs)) == len(pairs):
        return
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen and _REPLACEMENT not in key:
            raise _Rejected
        seen.add(key)


def _constant(name: str) -> NoReturn:
    """Refuse NaN and the infinities, which are not JSON."""
    raise _Rejected


# Only the verdict is wanted: objects are freed while the text is read, and numbers, which may have any size, stay text.
_STRICT = json.JSONDecoder(object_pairs_hook=_pairs, parse_int=str, parse_float=str, parse_constant=_constant)
_SANITIZABLE = json.JSONDecoder(
    object_pairs_hook=_sanitizable_pairs, parse_int=str, parse_float=str, parse_constant=_constant
)
_SYNTAX = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def check(text: str | bytes, *, what: str, limit: int) -> str:
    """Return the very same text, or raise because it is too large, not JSON or not the same everywhere."""
    known, odd = _read(text, what, limit)
    _judge(known, what, lone=True)
    if odd or _has_lone_escape(known):
        raise _explain(known, what, lone=True)
    return known


def measured(text: bytes, *, what: str, limit: int) -> str:
    """Return the text, or raise because it is too large; as a part of a text that was checked it is sound."""
    if len(text) > limit:
        raise TooLarge(what, len(text), limit)
    return text.decode()


def sanitize(text: str | bytes, *, what: str, limit: int) -> tuple[str, bool]:
    """Check like `check`, but replace lone surrogates by U+FFFD and tell whether there were any."""
    # Keys are compared as sent: those that only mending makes equal all stay in the text, in their order, and
    # most readers take the last. Refusing would lose a finish, and renaming would change more than surrogates
    # and could push the text over its limit; as it is, each replacement has the size of what it replaces. A text
    # that was mended may be mended again on its way, so equal keys are let through where they hold a replacement.
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
    """Replace the lone surrogates of a plain string by U+FFFD and tell whether there were any."""
    if value.isascii():
        return value, False
    sanitized, times = _SURROGATE.subn(_REPLACEMENT, value)
    return sanitized, times > 0


def loads(text: str | bytes) -> Any:
    """The value of a JSON text that was checked: a number that neither an int nor a float can hold is a Decimal."""
    text = text if isinstance(text, str) else text.decode()
    if _LARGE_NUMBER.search(text) is None:
        return json.loads(text)
    return json.loads(text, parse_int=_whole, parse_float=_real)


def dumps(value: Any) -> str:
    """JSON text of plain values; an integer may have more digits than Python writes by itself."""
    match value:
        case dict():
            return "{" + ",".join(f"{json.dumps(key)}:{dumps(part)}" for key, part in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(map(dumps, value)) + "]"
        case int() if abs(value) >= 2**64:
            return str(Decimal(value))
    return json.dumps(value, allow_nan=False)


def _whole(digits: str) -> int | Decimal:
    # Python converts no more digits than this (unless it is told otherwise): it takes quadratic time.
    most = sys.get_int_max_str_digits()
    return int(digits) if not most or len(digits) <= most else Decimal(digits)


def _real(digits: str) -> float | Decimal:
    value = float(digits)
    if math.isfinite(value):
        return value
    try:
        return Decimal(digits)
    except InvalidOperation:  # an exponent that not even a Decimal has
        return Decimal(value).next_toward(0, _WIDE)


def members(text: str) -> Iterator[tuple[str, str]]:
    """The members of an object that is known to be well-formed: each name, and its value as the text it has."""
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
    """Where a text goes on after whatever space it has at a place."""
    found = _SPACES.match(text, at)
    return at if found is None else found.end()


def is_visible_name(value: str, *, limit: int = 200) -> bool:
    """Tell whether a string can serve as a name: short, on one line, not padded, and seen as what it is."""
    return 1 <= len(value) <= limit and _is_visible(value)


def is_blank(value: str) -> bool:
    """Tell whether a text shows nothing: it is empty, or all space, controls and characters without a width."""
    return all(c.isspace() or unicodedata.category(c) in _UNSEEN or unicodedata.category(c) == "Cc" for c in value)


@lru_cache(1024)  # most requests name the same few types and workers
def _is_visible(value: str) -> bool:
    if value != value.strip():
        return False
    if value.isascii():
        return value.isprintable() and value not in _NO_SEGMENT
    # Joiners and the like are part of real names, so they are only refused where nothing else is there.
    if _DECEIVING.search(value):
        return False
    categories = set(map(unicodedata.category, value))
    return categories.isdisjoint(_NO_NAME) and not categories <= _UNSEEN


def _read(text: str | bytes, what: str, limit: int, *, sanitizes: bool = False) -> tuple[str, bool]:
    """Return the text as a string and whether it has raw surrogates, having measured it in UTF-8."""
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
    """Return the bytes as a string and whether it has surrogates, which are no UTF-8 and only stay to be mended."""
    try:
        return data.decode(), False
    except UnicodeDecodeError as error:
        if sanitizes:
            with suppress(UnicodeDecodeError):
                return data.decode(errors="surrogatepass"), True
        raise Malformed(f"{what} is not UTF-8: {error.reason} at byte {error.start}") from None


def _judge(text: str, what: str, *, lone: bool) -> None:
    """Refuse everything but surrogates; `lone` tells whether those are refused too, rather than mended."""
    # Depth 65 takes 65 brackets of each kind, so most texts need no count and few others a closer look.
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
    """Blank out escaped backslashes and quotes, with every other character staying at its place."""
    # A run of backslashes starts at an escape, hence replacing pairs from the left meets whole escapes only.
    return text.replace("\\\\", "__").replace('\\"', "__") if "\\" in text else text


def _depth(text: str) -> int:
    """Return how deep the brackets outside strings nest, at least up to the first syntax error."""
    # Neighbouring quotes hold nothing that counts between them, and taking both away keeps the parity.
    steps = _flatten(text).encode(errors="surrogatepass").translate(_STEPS, _NO_STEP).replace(b'""', b"")
    if b'"' in steps:
        steps = b"".join(steps.split(b'"')[::2])
    return max(map(sub, accumulate(steps), count(1)), default=0)


def _has_lone_escape(text: str) -> bool:
    """Tell whether a well-formed text has an escape of a surrogate that is not half of a pair."""
    return "\\" in text and ("\\ud" in text or "\\uD" in text) and _LONE_ESCAPE.search(_flatten(text)) is not None


def _explain(text: str, what: str, *, lone: bool) -> Malformed | Invalid:
    """Return the error for a refused text: its syntax error, or else the first offence and where it is."""
    try:
        _SYNTAX.decode(text)
    except json.JSONDecodeError as error:
        return Malformed(f"{what} is not JSON: {error}")
    # One step and one set per open container: the key or the index it is at (None: a key comes next), and the
    # keys it had so far (None: an array).
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
    """Return an error that names its place, or the nearest container when keys make the pointer too long."""
    pointer = ""
    for step in path:
        # The pointer goes into an answer, which has to be UTF-8 itself.
        part, _ = sanitize_text("/" + str(step).replace("~", "~0").replace("/", "~1"))
        if len(pointer) + len(part) > _POINTER_MAX:
            break
        pointer += part
    # The message may end up in a terminal or a log, where raw control characters of a key would do harm.
    position = pointer if pointer.isprintable() else json.dumps(pointer)
    return kind(f"{message} at {position or 'the top'}", pointer=pointer)
