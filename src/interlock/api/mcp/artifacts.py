"""The tool that reads artifacts: a list, or part of one file in a form that fits into a response."""

from __future__ import annotations

import codecs
import json
from typing import Any, Final

import msgspec

from interlock.api.mcp.api_client import Api, ApiRequest, ApiResponse
from interlock.api.mcp.arguments import Fields, path_part, scalar
from interlock.api.mcp.schemas import taking
from interlock.api.native import artifacts
from interlock.api.native.route_table import routes
from interlock.errors import Invalid, NotFound

MAX_ITEMS: Final = 1024 * 1024
USUAL: Final = 64 * 1024
ROUTE: Final = next(route for route in routes() if route.handler is artifacts.get_artifact)
_LIST: Final = next(route for route in routes() if route.handler is artifacts.list_artifacts)
_TEXT: Final = {"type": ["string", "null"]}
SCHEMA: Final = taking(
    {
        "job_id": {"type": "string"},
        "name": _TEXT,
        "artifact_id": _TEXT,
        "offset": {"type": "integer", "minimum": 0, "default": 0},
        "length": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS, "default": USUAL},
        "cursor": _TEXT,
    },
    ["job_id"],
)


async def get(native: Api, fields: Fields) -> ApiResponse:
    """Return the artifacts of a job, or the requested part of one of them."""
    if unknown := [name for name in fields if name not in SCHEMA["properties"]]:
        raise Invalid(f"unknown field {unknown[0]!r}", pointer=f"/{unknown[0]}")
    job_id = path_part(fields, "job_id")
    name, id = scalar(fields, "name"), scalar(fields, "artifact_id")
    if name is not None and id is not None:
        raise Invalid("give name or artifact_id, not both", pointer="/artifact_id")
    if name is None and id is None:
        return await _page(native, job_id, scalar(fields, "cursor"))
    offset, length = _whole(fields, "offset", 0, 0, 2**53), _whole(fields, "length", USUAL, 1, MAX_ITEMS)
    cursor: str | None = None
    while True:
        listed = await _page(native, job_id, cursor)
        if listed.is_refusal:
            return listed
        page = json.loads(listed.body)
        for one in page["items"]:
            if one["name"] == name or one["id"] == id:
                return await _part(native, one, offset, length)
        cursor = page["next_cursor"]
        if cursor is None:
            raise NotFound(name or id or "", what="artifact")


async def _page(native: Api, job_id: str, cursor: str | None) -> ApiResponse:
    query = [("limit", "200")] + ([("cursor", cursor)] if cursor is not None else [])
    return await native.ask(ApiRequest(route=_LIST, path={"job_id": job_id}, query=query))


async def _part(native: Api, artifact: dict[str, Any], offset: int, length: int) -> ApiResponse:
    size = artifact["size"]
    if size is None or size == 0:  # a link has none
        return _described(artifact, offset=0, length=0, text=None if size is None else "")
    path = {"job_id": artifact["job_id"], "artifact_id": artifact["id"]}
    wanted = {"range": f"bytes={offset}-{offset + length - 1}"}
    read = await native.ask(ApiRequest(route=ROUTE, path=path, headers=wanted))
    if read.is_refusal:
        return read
    is_last = offset + len(read.body) >= size
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        text = decoder.decode(read.body, final=is_last)
    except UnicodeDecodeError:
        return _described(artifact, offset=offset, length=len(read.body), content_base64=read.body)
    taken = len(read.body) - len(decoder.getstate()[0])  # a character cut in two is left to the next part
    if not taken:
        return _described(artifact, offset=offset, length=len(read.body), content_base64=read.body)
    return _described(artifact, offset=offset, length=taken, text=text)


def _described(artifact: dict[str, Any], **part: Any) -> ApiResponse:
    return ApiResponse(200, {}, msgspec.json.encode({"artifact": artifact} | part))


def _whole(fields: Fields, name: str, usual: int, least: int, most: int) -> int:
    given = scalar(fields, name)
    if given is None:
        return usual
    if not given.isascii() or not given.isdigit() or len(given) > 16 or not least <= int(given) <= most:
        raise Invalid(f"{name} must be a whole number from {least} to {most}", pointer=f"/{name}")
    return int(given)
