"""Protocol adapters, by the name that the setting `faces` uses: each is an entry point of the group `interlock.faces`.

codeQ, MoonMind and MCP are packages below this one. Other packages register theirs in the same way.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from interlock.errors import Invalid

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from interlock.api.adapters import Adapter

GROUP: Final = "interlock.faces"


@cache
def _entry_points() -> dict[str, list[EntryPoint]]:
    from importlib.metadata import entry_points  # slow to import, and most commands need no adapter

    found: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=GROUP)):
        found.setdefault(point.name, []).append(point)
    return found


def installed_faces() -> tuple[str, ...]:
    """Return the names of all installed adapters; none of them is imported."""
    return tuple(_entry_points())


def check_face(name: str) -> None:
    """Reject the name of an adapter that is not installed."""
    if name not in installed_faces():
        known = ", ".join(installed_faces()) or "none: Interlock itself is not installed, only its source"
        raise Invalid(
            f"unknown protocol adapter {name!r}: installed are {known}; install its package or remove it",
            pointer="/faces",
        )


def load_face(name: str) -> type[Adapter]:
    """Import an adapter. The error for one that cannot be used names its package."""
    from interlock.api.adapters import Adapter

    check_face(name)
    first, *others = _entry_points()[name]
    package = first.dist.name if first.dist is not None else first.value
    if others:
        both = " and ".join(sorted(one.dist.name if one.dist is not None else one.value for one in (first, *others)))
        raise Invalid(f"protocol adapter {name!r} is provided by {both}: uninstall all but one", pointer="/faces")
    try:
        found = first.load()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise Invalid(
            f"protocol adapter {name!r} of the package {package} cannot be imported ({why}): repair or remove it",
            pointer="/faces",
        ) from error
    if not isinstance(found, type) or not issubclass(found, Adapter):
        raise Invalid(
            f"protocol adapter {name!r} of the package {package} is not a subclass of Adapter: {first.value}",
            pointer="/faces",
        )
    return found
