"""The arguments of a task: bound and validated at enqueue as the worker will decode them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from interlock.errors import Invalid
from interlock.sdk import serialization

NOT_GIVEN: Final = object()
CONTEXT: Final = "ctx"  # name of a first parameter that is the context, also without an annotation
_SCALARS: Final = (str, int, float, bool, type(None))
_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class UnknownArgument(Invalid):
    """A payload whose only fault is an argument that the function does not have."""


class Signature:
    """The parameters of a function, except its context, and its return type."""

    def __init__(self, function: Callable[..., Any], context_type: type) -> None:
        self.name = getattr(function, "__qualname__", repr(function))
        hints = _hints(function, self.name)
        parameters = inspect.signature(function).parameters
        found = [name for name in parameters if _is_context(hints.get(name), context_type)]
        if not found and CONTEXT not in hints and next(iter(parameters), None) == CONTEXT:
            found = [CONTEXT]
        if len(found) > 1:
            raise TypeError(f"{self.name} has more than one context parameter: {', '.join(found)}")
        self.context = found[0] if found else None
        self.returns: Any = serialization.readable(hints.get("return", Any))
        taken = [parameter for name, parameter in parameters.items() if name != self.context]
        for parameter in taken:
            if parameter.kind not in _NAMED:
                raise TypeError(f"{self.name}: {parameter} cannot be passed by name: a task has named parameters only")
        self._signature = inspect.Signature(taken)
        # The payload of a call with such arguments has been checked once it is decoded: no nesting, no duplicate keys.
        self.is_flat = all(_is_scalar(hints.get(parameter.name)) for parameter in taken)
        self._struct = _struct(self.name, taken, hints)
        self._decode = serialization.decoder(self._struct)
        self._decode_known = serialization.decoder(_struct(self.name, taken, hints, forbid_unknown=False))
        self._names = tuple(parameter.name for parameter in taken)
        self._name_set = frozenset(self._names)
        self._positional = tuple(one.name for one in taken if one.kind is one.POSITIONAL_OR_KEYWORD)
        has_default = [parameter.default is not parameter.empty for parameter in taken]
        self._all_optional, self._has_defaults = all(has_default), any(has_default)

    def takes(self, name: str) -> bool:
        """Return whether the function has a parameter of this name, apart from its context."""
        return name in self._names

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return the payload of a call; reject a call with invalid arguments here instead of in the worker."""
        if not isinstance(kwargs, Mapping):
            raise TypeError(f"{self.name}: a call is {kwargs!r}: expected a dict of named arguments")
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        # Most calls name or pass every argument once; bind takes longer than the rest of an enqueue.
        if len(args) + len(kwargs) == len(self._names) and given.keys() == self._name_set:
            call: Mapping[str, Any] = {name: given[name] for name in self._names}
        else:
            try:
                call = self._signature.bind(*args, **kwargs).arguments
            except TypeError as error:
                raise TypeError(f"{self.name}: {error}") from None
        try:
            payload = serialization.encode_call(call).encode()
        except serialization.Altered as error:
            raise TypeError(f"{self.name}: {error}") from None
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise Invalid(f"{self.name}: {error}", pointer="/payload") from None
        self._read(payload)
        return payload

    def unpack(self, payload: str | None) -> dict[str, Any]:
        """Return the arguments in a payload, by name."""
        if self._all_optional and (payload is None or payload == "{}"):
            return {}
        try:
            read = self._read("{}" if payload is None else payload)
        except Invalid as error:
            raise self._closer(error, payload) from None
        given = msgspec.structs.asdict(read)
        return {name: value for name, value in given.items() if value is not NOT_GIVEN} if self._has_defaults else given

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the payload."""
        return serialization.schema(self._struct)

    def _closer(self, error: Invalid, payload: str | None) -> Invalid:
        """Return the same error, or `UnknownArgument` if an extra argument is the only problem."""
        try:
            self._decode_known(payload or "{}")
        except msgspec.MsgspecError:
            return error
        return UnknownArgument(str(error), pointer=error.pointer)

    def _read(self, payload: str | bytes) -> Any:
        try:
            return self._decode(payload)
        except msgspec.ValidationError as error:
            raise serialization.as_invalid(error, self.name) from None
        except msgspec.DecodeError:  # any other invalid text is rejected when it is encoded or stored
            raise Invalid(f"{self.name}: text contains a lone surrogate", pointer="/payload") from None


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"{name}: {error}: the types of task parameters must exist at declaration") from None


def _is_context(hint: Any, context_type: type) -> bool:
    """Return whether an annotation is Context or `Context | None`, which allows calls without a context."""
    if get_origin(hint) in (Union, UnionType):
        return any(_is_context(one, context_type) for one in get_args(hint))
    return isinstance(hint, type) and issubclass(hint, context_type)


def _is_scalar(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return all(map(_is_scalar, get_args(hint)))
    return any(hint is scalar for scalar in _SCALARS)


def _struct(
    name: str, taken: Sequence[inspect.Parameter], hints: Mapping[str, Any], *, forbid_unknown: bool = True
) -> type[msgspec.Struct]:
    """Return a struct with a field for each parameter; the function keeps its defaults."""
    fields: list[Any] = []
    for parameter in taken:
        hint = hints.get(parameter.name, Any)
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:
            fields.append((parameter.name, hint, msgspec.field(default_factory=lambda: NOT_GIVEN)))
    try:
        struct = msgspec.defstruct(
            name.rpartition(".")[2], fields, kw_only=True, frozen=True, forbid_unknown_fields=forbid_unknown
        )
        serialization.decoder(struct)
    except TypeError as error:
        raise TypeError(f"{name}: {error}") from None
    return struct
