"""Commands: job types that codeQ compares without case."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from interlock.api.routes import RequestContext
from interlock.domain.json_text import is_visible_name
from interlock.domain.policy import Names
from interlock.engine.engine import Engine
from interlock.faces.codeq.credentials import AnyCase
from interlock.faces.codeq.model import reject

MAX_TENANTS: Final = 1000

_known: WeakKeyDictionary[Engine, dict[str, Names]] = WeakKeyDictionary()


def check_commands(call: RequestContext[Any, Any], commands: Sequence[str]) -> None:
    """Reject names that no command can have, and commands that the credential does not list."""
    allowed = _allowed(call)
    for command in commands:
        if not is_visible_name(command):
            raise reject(400, "invalid command")
        if allowed is not None and command not in allowed:
            raise reject(403, "event type not allowed")


def add(call: RequestContext[Any, Any], command: str) -> None:
    """Remember the spelling of a new task's command."""
    types = _types(call)
    if types is not None and command not in types:
        _remember(call, types | {command})


def spellings(call: RequestContext[Any, Any], commands: Iterable[str]) -> list[Names]:
    """For each command all known types that differ from it only in case, as far as the credential allows them.

    A credential of codeQ lists commands, which have no case either; a token of ours lists exact types.
    """
    known, allowed = _types(call) or frozenset(), _allowed(call)
    by_lower: dict[str, set[str]] = {}
    for type in known:
        by_lower.setdefault(type.lower(), set()).add(type)
    found = [frozenset({command, *by_lower.get(command.lower(), ())}) for command in commands]
    if allowed is None or isinstance(allowed, AnyCase):
        return found
    return [types & allowed for types in found]


async def refresh(call: RequestContext[Any, Any]) -> None:
    """Read the types of the tenant again: other processes and the native API add some too."""
    _remember(call, frozenset(stats.type for stats in await call.engine.queries.queues(call.who.tenant)))


def _allowed(call: RequestContext[Any, Any]) -> Names | None:
    return None if call.who.policy is None else call.who.policy.types


def _types(call: RequestContext[Any, Any]) -> Names | None:
    return _known.setdefault(call.engine, {}).get(call.who.tenant)


def _remember(call: RequestContext[Any, Any], types: Names) -> None:
    tenants = _known.setdefault(call.engine, {})
    if call.who.tenant not in tenants and len(tenants) >= MAX_TENANTS:
        tenants.clear()
    tenants[call.who.tenant] = types
