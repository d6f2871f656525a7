"""Artifacts: uploaded by the lease holder of a job, listed and downloaded by callers that may read the job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from interlock.api import auth
from interlock.api.body import pieces_of
from interlock.api.long_poll import upload_in_time
from interlock.api.native.leases import LeaseRequest, as_holder
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.artifact import Artifact, Download, Holder, served_as
from interlock.wire import responses
from interlock.wire.encode import artifact_to_dict

routes = RouteTable()


class Upload(Request, frozen=True, kw_only=True):
    """The name of the artifact."""

    name: str
    worker: str | None = None
    sha256: str | None = None


class LinkRequest(LeaseRequest, frozen=True, kw_only=True):
    """A named link to an external resource."""

    name: str
    url: str


class _Fenced(Request, frozen=True, kw_only=True):
    fence: int
    worker: str | None = None


@routes.add(
    "PUT", "/v1/jobs/{job_id}/artifacts", roles=["work"], query=Upload, raw_body=True,
    headers=["Interlock-Fence"], answers={200: responses.Artifact},
)  # fmt: skip
async def put_artifact(call: RequestContext[None, Upload]) -> Response:
    """Upload a file. It replaces an artifact of the same name, and is visible only after it is stored completely."""
    lease = _Fenced(fence=call.headers.fence(), worker=call.query.worker)
    pieces: AsyncIterator[bytes] = upload_in_time(call, pieces_of(call.receive))

    async def act(job_id: str, worker: str) -> Artifact:
        return await call.engine.artifacts.put(
            call.who.tenant,
            Holder(job_id, lease.fence, worker),
            call.query.name,
            pieces,
            content_type=call.headers.get("content-type"),
            size=call.headers.length,
            sha256=call.query.sha256,
        )

    return respond(artifact_to_dict(await as_holder(call, lease, act)))


@routes.add(
    "POST", "/v1/jobs/{job_id}/artifacts", roles=["work"], body=LinkRequest, answers={201: responses.Artifact}
)  # fmt: skip
async def link_artifact(call: RequestContext[LinkRequest, Nothing]) -> Response:
    """Store a named link. The URL is never fetched; an artifact of the same name is replaced."""
    body = call.body

    async def act(job_id: str, worker: str) -> Artifact:
        return await call.engine.artifacts.link(
            call.who.tenant, Holder(job_id, body.fence, worker), body.name, body.url
        )

    return respond(artifact_to_dict(await as_holder(call, body, act)), 201)


@routes.add(
    "GET", "/v1/jobs/{job_id}/artifacts", roles=["read"], on_condition=["work"], query=Page,
    answers={200: responses.ArtifactPage},
)  # fmt: skip
async def list_artifacts(call: RequestContext[None, Page]) -> Response:
    """List the artifacts of a job, newest first."""
    job = await auth.readable(call)
    at = cursor_position(call, f"artifacts {job.id}")
    before = None if at is None else (int(at[0]), str(at[1]))
    found = await call.engine.artifacts.list(call.who.tenant, job.id, before=before, limit=call.query.limit)
    end: list[int | str] = [found[-1].created_at, found[-1].id] if found else []
    return page(
        call,
        f"artifacts {job.id}",
        [artifact_to_dict(one) for one in found],
        more=len(found) == call.query.limit,
        end=end,
    )


@routes.add(
    "GET", "/v1/jobs/{job_id}/artifacts/{artifact_id}", roles=["read"], on_condition=["work"],
    headers=["Range"], answers={200: None, 206: None}, produces="application/octet-stream",
)  # fmt: skip
async def get_artifact(call: RequestContext[None, Nothing]) -> Response:
    """Download a file, or one byte range of it. Browsers save it and do not display it."""
    job = await auth.readable(call)
    download = await call.engine.artifacts.read(
        call.who.tenant, job.id, call.path["artifact_id"], wanted=call.headers.get("range")
    )
    return Response(
        206 if download.partial else 200,
        media_type=served_as(download.artifact.content_type),
        headers=_headers(download),
        stream=download.chunks,
    )


def _headers(download: Download) -> dict[str, Any]:
    found = download.artifact
    headers = {
        "content-length": str(download.end - download.start),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
        "accept-ranges": "bytes",
        "content-security-policy": "sandbox; default-src 'none'",
    }
    if found.sha256 is not None:
        headers["etag"] = f'"{found.sha256.hex()}"'
    if download.partial:
        headers["content-range"] = f"bytes {download.start}-{download.end - 1}/{found.size}"
    return headers
