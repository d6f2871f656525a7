"""From a problem document back to the class that an engine in this process would have raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from interlock import errors
from interlock.errors import Error, Fatal, FieldError, Invalid, Malformed, Unavailable

# Attributes of each class, with defaults for those that neither the response nor the request contains.
_FACTS: Final[Mapping[type[Error], Mapping[str, object]]] = {
    errors.NotFound: {"id": "", "resource": "job"},
    errors.LeaseLost: {"job_id": "", "fence": 0},
    errors.AlreadyFinished: {"job_id": "", "how": ""},
    errors.NotRunning: {"job_id": "", "fence": 0},
    errors.BrokenJob: {"job_id": ""},
    errors.CheckpointConflict: {"job_id": "", "seq": 0, "current": 0},
    errors.CancelRequested: {"job_id": ""},
    errors.NoCancelRequested: {"job_id": ""},
    errors.TokenExists: {"key": "", "token_id": ""},
    errors.WouldDeadlock: {"job_id": "", "child_id": ""},
    errors.ParentNotActive: {"job_id": ""},
    errors.NotEditable: {"job_id": ""},
    errors.NotTerminal: {"job_id": "", "state": ""},
    errors.AlreadyDecided: {"approval_id": "", "how": ""},
    errors.DigestMismatch: {"approval_id": ""},
    errors.Gone: {"approval_id": ""},
    errors.PreconditionFailed: {"job_id": "", "expected": 0, "version": 0},
    errors.AgentInUse: {"kind": "", "id": ""},
    errors.TooLarge: {"what": "", "size": 0, "limit": 0},
    errors.IdempotencyKeyReuse: {"key": "", "job_id": "", "what": "job"},
    errors.UnknownType: {"job_type": ""},
    errors.UnknownAgent: {"kind": "", "id": ""},
    errors.Unsatisfiable: {"size": 0},
    errors.ArtifactLost: {"artifact_id": ""},
}
_KINDS: Final = {  # errors without their own code never leave the server under their own class
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, Error) and "code" in vars(kind)
}
_NOT_NOW: Final = frozenset({408, 425, 429, 502, 503, 504})
# Members of every problem document. They are never attributes of an error, even where the names are equal.
_FRAME: Final = frozenset({"type", "title", "status", "code", "detail", "errors"})


def problem(body: bytes) -> dict[str, Any]:
    """Decode a problem document; return an empty one if a proxy responded in another format."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def rebuilt(document: Mapping[str, Any], status: int, known: Mapping[str, object]) -> Error:
    """Rebuild the error of a problem document; attributes that it lacks come from the request."""
    kind = _KINDS.get(str(document.get("code")), Unavailable if status in _NOT_NOW else Error)
    if issubclass(kind, Fatal):
        kind = Unavailable  # only that server must stop; after a restart, or on another one, the call can succeed
    detail = str(document.get("detail") or f"the server answered with status {status}")
    error = kind.__new__(kind, detail)
    faults = tuple(_faults(document))
    if isinstance(error, Invalid):
        error.faults = faults or (FieldError("", detail),)
    elif faults or isinstance(error, Malformed):
        error.pointer = faults[0].pointer if faults else ""
    details = {name: value for name, value in document.items() if name not in _FRAME}
    if isinstance(error, errors.NotFound):  # the ID of a missing job has its own member
        id = details.get("id", details.get("job_id", known.get("job_id", "")))
        details |= {"id": id, "resource": details.get("what", "job")}
    for name, blank in _facts(kind).items():
        setattr(error, name, details.get(name, known.get(name, blank)))
    return error


def is_passing(status: int) -> bool:
    """Return whether a status is temporary, as opposed to caused by the request."""
    return status in _NOT_NOW


def _facts(kind: type[Error]) -> Mapping[str, object]:
    return next((_FACTS[base] for base in kind.__mro__ if base in _FACTS), {})


def _faults(document: Mapping[str, Any]) -> list[FieldError]:
    given = document.get("errors")
    if not isinstance(given, list):
        return []
    return [
        FieldError(str(one.get("pointer", "")), str(one.get("message", ""))) for one in given if isinstance(one, dict)
    ]
