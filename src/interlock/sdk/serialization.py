"""Serialization of Python values as JSON: plain types, dataclasses, msgspec structs, and pydantic models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Flag
from functools import lru_cache
from pathlib import PurePath
from typing import Any

import msgspec
import msgspec.inspect

from interlock.domain import json_text
from interlock.errors import Invalid


class Altered(TypeError):
    """A value that would change in a round trip through JSON."""


def encode(value: object) -> str:
    """Encode as JSON; a lone surrogate stays an escape, which the store sanitizes."""
    return _encode(value, _to_plain)


def encode_call(value: object) -> str:
    """Encode a payload; reject a model that the receiver would decode differently."""
    return _encode(value, _to_plain_and_back)


def _encode(value: object, hook: Callable[[object], object]) -> str:
    try:
        written = msgspec.json.encode(value, enc_hook=hook).decode()
    except (UnicodeEncodeError, ValueError) as error:  # a lone surrogate, or more digits than Python writes by itself
        if isinstance(error, UnicodeEncodeError) or "digits" in str(error):
            return _slowly(value, hook)
        raise
    if "null" in written:  # which is what a NaN would have become, too
        _slowly(value, hook)
    return written


def _slowly(value: object, hook: Callable[[object], object]) -> str:
    try:
        return json_text.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=hook))
    except ValueError as error:
        raise ValueError("NaN and infinity cannot be serialized as JSON") from error


@lru_cache(maxsize=1024)
def decoder(type: Any) -> Callable[[str | bytes], Any]:
    """Return a decoder of JSON text for a type; a number that no float can represent becomes a Decimal."""
    usual = msgspec.json.Decoder(type, dec_hook=_from_plain).decode

    def read(given: str | bytes) -> Any:
        try:
            return usual(given)
        except msgspec.ValidationError as error:
            if "out of range" not in str(error):
                raise
            return msgspec.convert(json_text.loads(given), type, str_keys=True, dec_hook=_from_plain)

    return read


def decode(given: str | None, type: Any = Any) -> Any:
    """Decode JSON text; return None for None."""
    return None if given is None else decoder(type)(given)


def readable(type: Any) -> Any:
    """Return the type if JSON can be decoded as it, else Any."""
    try:
        return type if _is_readable(type) else Any
    except TypeError:
        return Any


@lru_cache(maxsize=1024)
def _is_readable(type: Any) -> bool:
    decoder(type)
    return all(map(_can_be_read, _parts(msgspec.inspect.type_info(type))))


def _parts(info: object) -> Iterator[msgspec.inspect.Type]:
    """Yield a type and all types it contains, each once."""
    left, seen = [info], set()
    while left:
        one = left.pop()
        if isinstance(one, (tuple, list)):
            left += one
        elif isinstance(one, msgspec.Struct) and id(one) not in seen:
            seen.add(id(one))
            left += msgspec.structs.astuple(one)
            if isinstance(one, msgspec.inspect.Type):
                yield one


def _can_be_read(part: msgspec.inspect.Type) -> bool:
    if not isinstance(part, msgspec.inspect.CustomType):
        return True
    wanted: Any = part.cls
    is_path = isinstance(wanted, type) and issubclass(wanted, PurePath)
    return wanted is object or is_path or hasattr(wanted, "model_validate")


def schema(type: Any) -> dict[str, Any]:
    """Return the JSON Schema of a type, valid for every encoded value."""
    found = _parts(msgspec.inspect.type_info(type))
    flags = [one.cls for one in found if isinstance(one, msgspec.inspect.EnumType) and issubclass(one.cls, Flag)]
    narrow = [{"title": flag.__name__, "enum": sorted(member.value for member in flag)} for flag in flags]
    wide: dict[str, Any] = _widened(msgspec.json.schema(type, schema_hook=_model_schema), narrow)
    return wide


def _widened(node: Any, flags: Sequence[dict[str, Any]]) -> Any:
    """Widen msgspec's schema to accept what msgspec itself writes: fractional seconds and combined flags."""
    if isinstance(node, list):
        return [_widened(one, flags) for one in node]
    if not isinstance(node, dict):
        return node
    if {name: node.get(name) for name in ("title", "enum")} in flags:
        return {name: value for name, value in node.items() if name != "enum"} | {"type": "integer"}
    is_span = node.get("type") == "string" and node.get("format") == "duration"
    return {name: _widened(value, flags) for name, value in node.items() if not (is_span and name == "format")}


def as_invalid(error: msgspec.ValidationError, what: str) -> Invalid:
    """Convert a validation error, with its path as a JSON pointer."""
    message, _, path = str(error).partition(" - at `$")
    pointer = path.rstrip("`").replace(".", "/").replace("[", "/").replace("]", "")
    place = f" ({pointer.strip('/')})" if pointer else ""
    return Invalid(f"{what}: {message}{place}", pointer=f"/payload{pointer}")


def _to_plain(value: object) -> object:
    if isinstance(value, PurePath):
        return str(value)
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} cannot be serialized as JSON")
    # As the model itself would decode it: by aliases, without computed fields.
    return dump(mode="json", by_alias=True, round_trip=True)


def _to_plain_and_back(value: object) -> object:
    plain = _to_plain(value)
    kind: Any = type(value)
    if isinstance(value, PurePath):
        return plain
    try:
        again = kind.model_validate(plain)
    except ValueError:
        return plain  # decoding it as this model will report what is wrong, and where
    if (place := _altered(value, again, kind.__name__)) is not None:
        raise Altered(
            f"{place} cannot be sent unchanged: secrets are masked, excluded fields are dropped and some types change "
            "in JSON; send an identifier and load the value in the task"
        )
    return plain


def _altered(sent: Any, read: Any, place: str) -> str | None:
    """Return the first path where two values differ; ignore private attributes and treat tuples as lists."""
    parts: Iterator[tuple[Any, Any, str]]
    fields = getattr(type(sent), "model_fields", None)
    if fields is not None and type(sent) is type(read):
        names = [*fields, *(sent.model_extra or ())]
        parts = ((getattr(sent, name), getattr(read, name, None), f"{place}.{name}") for name in names)
    elif isinstance(sent, (list, tuple)) and isinstance(read, (list, tuple)) and len(sent) == len(read):
        parts = ((a, b, f"{place}[{i}]") for i, (a, b) in enumerate(zip(sent, read, strict=True)))
    elif isinstance(sent, dict) and isinstance(read, dict) and sent.keys() == read.keys():
        parts = ((one, read[key], f"{place}[{key!r}]") for key, one in sent.items())
    else:
        return None if sent == read else place
    return next((found for part in parts if (found := _altered(*part)) is not None), None)


def _from_plain(wanted: Any, value: object) -> object:
    validate = getattr(wanted, "model_validate", None)
    if validate is None and wanted is object:
        return value
    if isinstance(value, str) and isinstance(wanted, type) and issubclass(wanted, PurePath):
        return wanted(value)
    if validate is None:
        raise TypeError(f"JSON cannot be read as {wanted!r}")
    # Pydantic's own error is a ValueError, which msgspec reports with the place it stands at.
    return validate(value)


def _model_schema(wanted: Any) -> dict[str, Any]:
    anything = {"title": getattr(wanted, "__name__", str(wanted))}  # msgspec treats an empty schema as absent
    if isinstance(wanted, type) and issubclass(wanted, PurePath):
        return {"type": "string", "format": "path"}
    describe = getattr(wanted, "model_json_schema", None)
    if describe is None:
        return anything
    described: dict[str, Any] = describe()
    # References to definitions resolve only at the root of a document, so a schema that has them accepts anything.
    return anything if "$defs" in described else described
