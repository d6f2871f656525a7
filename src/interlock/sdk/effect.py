"""Effects in tasks: how a call gets its key, what `verify` returns, and the question about an unknown outcome."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from interlock.domain.effect import INTENT, Effect
from interlock.domain.json_text import is_visible_name
from interlock.sdk import serialization
from interlock.sdk.answers import inlined

DONE, AGAIN, FAIL = "done", "run again", "fail"
_OUTCOME: Final = {"title": "Did it happen?", "enum": [DONE, AGAIN, FAIL]}


@dataclass(frozen=True, slots=True)
class Done:
    """What the `verify=` of an effect returns if the effect has happened, with its result."""

    result: Any = None


def verified(value: Any) -> Done | None:
    """Return the outcome that `verify=` found: None and False mean not done, True means done without a result."""
    if value is None or value is False:
        return None
    if value is True:
        return Done()
    return value if isinstance(value, Done) else Done(value)


def default_key(job_id: str, name: str, occurrence: int) -> str:
    """Return the key of an effect without `key=`: the same in every run of the job."""
    key = f"{job_id}/{name}/{occurrence}"
    return key if is_visible_name(key) else hashlib.sha256(key.encode()).hexdigest()


def with_key(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], key: str
) -> Mapping[str, Any]:
    """Return the named arguments of a call, with `key` if the function has a parameter of this name."""
    try:
        signature = inspect.signature(function)
        parameter = signature.parameters.get("key")
        given = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return kwargs
    takes = parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return {**kwargs, "key": key} if takes and "key" not in given else kwargs


def question_name(job_id: str, effect: Effect) -> str:
    """Return the name of the question about one start of an effect; a redriven job asks its own question."""
    start = repr((job_id, effect.name, effect.occurrence, effect.fence))
    return INTENT + hashlib.sha256(start.encode()).hexdigest()[:32]


def question_form(returns: Any) -> dict[str, Any]:
    """Return the form of the question; with the result if the function returns one."""
    form: dict[str, Any] = {"type": "object", "properties": {"outcome": _OUTCOME}, "required": ["outcome"]}
    if returns is not None and returns is not type(None):
        result = {} if returns is Any else inlined(serialization.schema(returns))
        form["properties"]["result"] = {"title": "Result", "description": "only if it is done"} | result
    return form | {"additionalProperties": False}
