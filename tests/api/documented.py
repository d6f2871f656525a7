"""Compare responses with the OpenAPI document: no undocumented member, and every documented one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

import httpx2

from interlock.api import openapi
from interlock.api.app import routes
from interlock.domain.json_text import loads

_PARAMETER: Final = re.compile(r"\\\{\w+\\\}")


async def check(response: httpx2.Response) -> None:
    """Check every response of a served test except problems, to which each error adds its own members."""
    request = response.request
    given = _responses(request.method, request.url.path)
    if given is None or response.status_code >= 400:
        return
    where = f"{request.method} {request.url.path} {response.status_code}"
    assert str(response.status_code) in given, f"{where} is not in the document"
    content = given[str(response.status_code)].get("content", {})
    if not content:
        return
    media_type = response.headers["content-type"].partition(";")[0]
    assert media_type in content, f"{where}: {media_type} is not in the document"
    if media_type == "application/json":
        await response.aread()
        assert list(faults(content[media_type]["schema"], loads(response.content))) == [], where


def faults(schema: Mapping[str, Any], value: Any, place: str = "") -> Iterator[str]:
    """Members of a value that its schema does not name, and those it promises that are not there."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if name == "Problem":
        return
    if name:
        schema = _document()["components"]["schemas"][name]
    if "anyOf" in schema:
        found = [list(faults(one, value, place)) for one in schema["anyOf"] if _may_be(one, value)]
        yield from min(found, key=len, default=[f"{place} fits nothing"])
    elif isinstance(value, dict):
        known, rest = schema.get("properties"), schema.get("additionalProperties")
        for name, member in value.items():
            if known is not None and name in known:
                yield from faults(known[name], member, f"{place}/{name}")
            elif isinstance(rest, dict):
                yield from faults(rest, member, f"{place}/{name}")
            elif known is not None:
                yield f"{place}/{name} is not in the document"
        yield from (f"{place}/{name} is missing" for name in schema.get("required", ()) if name not in value)
    elif isinstance(value, list) and "items" in schema:
        for i, one in enumerate(value):
            yield from faults(schema["items"], one, f"{place}/{i}")


def _may_be(schema: Mapping[str, Any], value: Any) -> bool:
    return (value is None) == (schema.get("type") == "null")


def _responses(method: str, path: str) -> Mapping[str, Any] | None:
    """Return the documented responses of a request, or None if it is not a route of the native API."""
    for pattern, methods in _paths():
        if pattern.fullmatch(path) and method.lower() in methods:
            found: Mapping[str, Any] = methods[method.lower()]["responses"]
            return found
    return None


@cache
def _document() -> dict[str, Any]:
    return openapi.document(routes())


@cache
def _paths() -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """Plain paths first: they are meant where a parameter would fit too."""
    by_names = sorted(_document()["paths"].items(), key=lambda one: one[0].count("{"))
    return [(re.compile(_PARAMETER.sub("[^/]+", re.escape(path))), methods) for path, methods in by_names]
