"""The Python reference, written from docstrings: `python -m tests.support.reference` writes docs/reference/python.md anew."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from textwrap import fill, indent
from types import ModuleType
from typing import Any, Final

import interlock
from interlock import testing
from interlock.sdk import groups
from interlock.sdk.queue import Item
from interlock.sdk.tasks import Options

WIDTH: Final = 100
PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "reference" / "python.md"
HEAD: Final = """# Python reference

Every public name of the Python package, from its docstrings; `python -m tests.support.reference` writes this page.
[Write tasks](../how-to/write-tasks.md), [steps](../explanation/steps-and-replay.md),
[approvals](../how-to/request-approvals.md), [retries](../how-to/retry-and-redrive.md) and
[testing](../how-to/test-tasks.md) explain how to use them. Methods marked \\* also have a synchronous version with
`_sync` at the end of the name and the same arguments.
"""
# Used only between the worker and the SDK.
INSIDE: Final = {
    "Task": {"definition", "function", "has_key", "failures"},
    "MemoryApp": {"discard"},
}
GROUPS: Final = {kind.__name__.lower(): kind for kind in groups.Group.__subclasses__()}
MADE_BY_US: Final = {
    interlock.Context, interlock.JobHandle, interlock.Child, interlock.Task, interlock.ApprovalResult, interlock.ShardSupplier, Item,
    interlock.StreamWriter, interlock.ConsumedItem,
}  # fmt: skip


def render() -> str:
    """The whole page."""
    names = [(f"interlock.{name}", getattr(interlock, name)) for name in sorted(interlock.__all__)]
    names += [(f"App.{group}", kind) for group, kind in GROUPS.items()]
    names += [("testing.MemoryApp", testing.MemoryApp), ("testing.Clock", testing.Clock)]
    parts = [HEAD]
    for name, kind in names:
        parts += _module(name, kind) if inspect.ismodule(kind) else _entry(name, kind)
    parts += ["## Options of tasks\n", *_options()]
    return "\n".join(map(_wrapped, "\n".join(parts).rstrip().split("\n"))) + "\n"


def _wrapped(line: str) -> str:
    if len(line) <= WIDTH or line.startswith(("|", "#", "    │", "    ├")):
        return line
    indent = "  " if line.startswith("- ") else " " * 8 if line.startswith(" " * 4) else ""
    return fill(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _class(name: str, kind: type) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield f"{_given(kind)}\n"
    if (
        kind not in MADE_BY_US
        and kind not in GROUPS.values()
        and _is_ours(kind, "__init__")
        and not issubclass(kind, interlock.Error)
    ):
        yield f"    {_signature(kind.__init__, name.rpartition('.')[2])}\n"
    if issubclass(kind, Enum):
        yield "Values: " + ", ".join(f"`{member.value}`" for member in kind) + ".\n"
    if rows := list(_members(kind)):
        yield "\n".join(rows) + "\n"


def _entry(name: str, kind: Any) -> Iterator[str]:
    return _class(name, kind) if inspect.isclass(kind) else _function(name, kind)


def _module(name: str, module: ModuleType) -> Iterator[str]:
    yield f"## `{name}`\n"
    about, _, tree = (module.__doc__ or "").strip().partition("\n\n")
    yield f"{about}\n"
    if tree:
        yield f"{indent(tree, ' ' * 4)}\n"
    for member in getattr(module, "__all__", ()):
        yield from _function(f"{name}.{member}", getattr(module, member))


def _function(name: str, function: Any) -> Iterator[str]:
    yield f"## `{name}`\n"
    yield f"    {_signature(function, name, skip=0)}\n"
    yield f"{_given(function)}\n"


def entries_of(kind: type) -> Iterator[tuple[str, Any]]:
    """The members of a class that the page describes."""
    hidden = INSIDE.get(kind.__name__, set())
    for name, member in inspect.getmembers_static(kind):
        if not (name.startswith("_") or name.endswith("_sync") or name in hidden) and _is_ours(kind, name):
            yield name, member


def _members(kind: type) -> Iterator[str]:
    for name, member in entries_of(kind):
        if isinstance(member, property) or inspect.ismemberdescriptor(member):
            given = _given(member) if isinstance(member, property) else ""
            yield f"- `{name}`" + (f": {given}" if given else "")
        elif inspect.isfunction(member):
            verb = "async " if inspect.iscoroutinefunction(member) else ""
            twin = "\\*" if hasattr(kind, f"{name}_sync") else ""
            yield f"- `{verb}{_signature(member, name)}`{twin}: {_given(member)}"


def _is_ours(kind: type, name: str) -> bool:
    """Whether a member is of this class, and not of another one with a separate entry on the page."""
    home = next(base for base in kind.__mro__ if name in vars(base))
    elsewhere = home.__name__ != kind.__name__ and home.__name__ in interlock.__all__
    return home.__module__.startswith("interlock.") and not elsewhere


def _signature(function: Any, name: str, *, skip: int = 1) -> str:
    signature = inspect.signature(function)
    words: list[str] = []
    star = False
    for parameter in list(signature.parameters.values())[skip:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        words.append(_parameter(parameter))
    returned = signature.return_annotation
    arrow = "" if returned in (signature.empty, "None", None) else f" -> {returned}"
    return f"{name}({', '.join(words)}){arrow}"


def _parameter(parameter: inspect.Parameter) -> str:
    prefix = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    given = "" if parameter.annotation is parameter.empty else f": {parameter.annotation}"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{prefix}{parameter.name}{given}{default}".replace("datetime.", "").replace("SdkApp", "App")


def _options() -> Iterator[str]:
    yield f"{_given(Options)} They stand at `@app.task(…)`, `task.options(…)` and `queue.push(…)`.\n"
    rows = [f"| `{name}` | `{hint}` |" for name, hint in _hints().items()]
    yield "\n".join(["| option | type |", "|---|---|", *rows]) + "\n"


def _hints() -> dict[str, str]:
    return {
        name: getattr(hint, "__forward_arg__", str(hint)).replace("|", "\\|")
        for name, hint in Options.__annotations__.items()
    }


def _given(what: Any) -> str:
    """A docstring as one line."""
    return " ".join((what.__doc__ or "").split())


if __name__ == "__main__":
    PAGE.write_text(render())
