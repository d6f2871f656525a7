"""No public callable or value shows a type that users cannot name."""

from __future__ import annotations

import builtins
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, ForwardRef, TypeVar, get_args, get_type_hints

import pytest

import interlock
from interlock import testing
from interlock.sdk.app import App, Declare
from tests.support.reference import GROUPS, INSIDE, MADE_BY_US

CLASSES = {name: kind for name in interlock.__all__ if inspect.isclass(kind := getattr(interlock, name))}
CLASSES |= {f"App.{name}": kind for name, kind in GROUPS.items()}
CLASSES |= {"MemoryApp": testing.MemoryApp, "Clock": testing.Clock}
# The base of App, and a decorator: users never name them.
PUBLIC = {*CLASSES.values(), App, Declare}


def types_in(hint: Any) -> Iterator[type]:
    """Yield every class in an annotation."""
    if isinstance(hint, TypeVar):
        hint = hint.__bound__
    assert not isinstance(hint, ForwardRef), f"{hint} is not resolved"
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        yield hint
    if isinstance(origin := getattr(hint, "__origin__", None), type):
        yield origin
    for inner in hint if isinstance(hint, (list, tuple)) else get_args(hint):
        yield from types_in(inner)


def callables(kind: type) -> Iterator[tuple[str, Any]]:
    hidden = set().union(*(INSIDE.get(base.__name__, set()) for base in kind.__mro__))
    if kind in MADE_BY_US or kind in GROUPS.values():
        hidden.add("__init__")
    for name, member in inspect.getmembers_static(kind):
        if (name.startswith("_") and name != "__init__") or name in hidden:
            continue
        member = getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
        home = next(base for base in kind.__mro__ if name in vars(base))
        if inspect.isfunction(member) and home.__module__.startswith("interlock"):
            yield name, member


def hints_of(what: Any) -> dict[str, Any]:
    module = sys.modules[what.__module__]
    return get_type_hints(
        what, globalns={**vars(builtins), **{n: getattr(interlock, n) for n in interlock.__all__}, **vars(module)}
    )


def private_types(what: Any) -> set[str]:
    found = {one for hint in hints_of(what).values() for one in types_in(hint)}
    return {
        f"{one.__module__}.{one.__qualname__}"
        for one in found
        if one.__module__.startswith("interlock") and one not in PUBLIC
    }


@pytest.mark.parametrize("name", CLASSES)
def test_no_public_callable_shows_a_private_type(name: str) -> None:
    kind = CLASSES[name]
    shown = {member: private for member, function in callables(kind) if (private := private_types(function))}
    if kind.__module__ == "interlock.sdk.values":
        shown |= {"its fields": private} if (private := private_types(kind)) else {}
    assert shown == {}
