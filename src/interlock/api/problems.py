"""Errors as RFC 9457 problem documents, each with a stable code."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from interlock.domain import json_text
from interlock.errors import Error, Fatal, IdempotencyKeyReuse, Invalid, NotFound, Unavailable, Unsatisfiable

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 1
MAX_DETAIL_LENGTH: Final = 2000
MAX_FAULTS: Final = 100
# Members that every problem document has. Attributes of an error never replace them.
_FRAME: Final = frozenset({"public", "type", "title", "status", "code", "detail", "errors", "pointer"})

# Errors of HTTP itself; every other one is a class in `interlock.errors` with its own code.
HTTP_CODES: Final[Mapping[str, tuple[int, str]]] = {
    "bad_request": (400, "The request is not well-formed HTTP, or sets one thing twice."),
    "cross_site": (403, "A page of another site made this request."),
    "no_such_route": (404, "Nothing is served under this path."),
    "method_not_allowed": (405, "The path takes other methods; `Allow` names them."),
    "request_timeout": (408, "The request took too long to arrive."),
    "unsupported_media_type": (415, "The body is not `application/json`, or it is compressed."),
    "unknown_host": (421, "The service does not answer to this host name."),
    "rate_limited": (429, "This principal sends too many requests; retry after `Retry-After` seconds."),
    "head_too_large": (431, "Request line and headers are too long."),
    "internal": (500, "A defect of the service; its log has the same request id."),
    "overloaded": (503, "More requests are at work than the service takes at a time; nothing was changed."),
    "stopping": (503, "The service is being stopped; another one, or this one again, will answer."),
}


class Refusal(Exception):
    """A request that is rejected by the HTTP layer, not by the engine."""

    def __init__(
        self, code: str, detail: str, *, headers: Mapping[str, str] | None = None, close: bool = False
    ) -> None:
        self.code = code
        self.status = HTTP_CODES[code][0]
        self.headers = dict(headers or {})
        self.close = close
        super().__init__(detail)


def status_of(error: Exception) -> int:
    """Return the HTTP status; an unexpected exception is a bug and gives 500."""
    match error:
        case Refusal():
            return error.status
        case Fatal():
            return 503
        case Error():
            return error.status
        case _:
            return 500


def document(error: Exception, *, status: int | None = None) -> dict[str, Any]:
    """Return the problem document. It describes invalid input; for a bug it contains no details."""
    code = error.code if isinstance(error, (Error, Refusal)) else "internal"
    status = status or status_of(error)
    encoded: dict[str, Any] = {
        "type": f"/docs#{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail(error),
    }
    if isinstance(error, Invalid):
        encoded["errors"] = [_fault(pointer, code, message) for pointer, message in error.faults[:MAX_FAULTS]]
    elif isinstance(error, Error) and error.pointer:
        encoded["errors"] = [_fault(error.pointer, code, encoded["detail"])]
    return encoded | (facts(error) if isinstance(error, Error) else {})


def detail(error: Exception) -> str:
    """Return the detail for the caller. Storage errors omit file, host and statement, which are only logged."""
    if isinstance(error, (Unavailable, Fatal)):
        return _plain(error.public)
    return _plain(error) if isinstance(error, (Error, Refusal)) else "something went wrong here"


def facts(error: Error) -> dict[str, Any]:
    """Return the attributes of an error as separate members for programs."""
    found = {
        name: _plain(value) if isinstance(value, str) else value
        for name, value in vars(error).items()
        if name not in _FRAME and isinstance(value, (str, int))
    }
    if isinstance(error, NotFound):
        found["what"] = found.pop("resource")
        name = "job_id" if error.resource == "job" else "id"
        found[name] = found.pop("id")
        if not error.id and name == "id":
            del found[name]
    elif isinstance(error, IdempotencyKeyReuse) and error.what != "job":
        found["id"] = found.pop("job_id")
    return found


def headers(error: Exception) -> dict[str, str]:
    """Return the response headers of an error."""
    if isinstance(error, Refusal):
        found = dict(error.headers)
        if error.status in (429, 503):
            found.setdefault("retry-after", str(RETRY_AFTER_SECONDS))
        return found
    if status_of(error) == 401:
        return {"www-authenticate": "Bearer"}
    if isinstance(error, Unsatisfiable):
        return {"content-range": f"bytes */{error.size}"}
    if isinstance(error, (Unavailable, Fatal)) or status_of(error) in (429, 503):
        return {"retry-after": str(RETRY_AFTER_SECONDS)}
    return {}


def encoded(error: Exception) -> bytes:
    return msgspec.json.encode(document(error))


def item(job_id: str, error: Error) -> dict[str, Any]:
    """Return the error of one rejected item of a batch."""
    return {"id": json_text.sanitize_text(job_id)[0][:200], "error": document(error)}


def catalogue() -> dict[str, tuple[int, str]]:
    """Return every error code with its status and meaning."""
    found = dict(HTTP_CODES)
    waiting: list[type[Error]] = [Error]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind is not Error and kind.__module__ == Error.__module__:
            status = 503 if issubclass(kind, Fatal) else kind.status
            found.setdefault(kind.code, (status, (kind.__doc__ or "").strip()))
    return found


def _fault(pointer: str, code: str, message: str) -> dict[str, str]:
    return {
        "pointer": json_text.sanitize_text(pointer)[0][:MAX_DETAIL_LENGTH],
        "code": code,
        "message": _plain(message),
    }


def _plain(message: object) -> str:
    given = json_text.sanitize_text(str(message))[0]
    return given if len(given) <= MAX_DETAIL_LENGTH else given[:MAX_DETAIL_LENGTH] + "…"
