"""Artifacts: a form with a file in, lists and bytes out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Final

from msgspec import Meta

from interlock import wire
from interlock.api.face import Lenient
from interlock.api.moonmind import encode
from interlock.api.moonmind.auth import refused
from interlock.api.moonmind.jobs import BASE, queue
from interlock.api.moonmind.multipart import parts
from interlock.api.moonmind.service import Queue
from interlock.api.routes import Answer, Call, Nothing, Routes, answer
from interlock.api.waiting import whole_upload
from interlock.domain.artifact import Artifact, served_as
from interlock.engine.artifacts import LONGEST_PAGE
from interlock.engine.engine import Engine
from interlock.errors import Conflict, Invalid, Malformed, TooLarge

routes = Routes()

ROOM_FOR_FIELDS: Final = 64 * 1024
_DIGEST: Final = "sha256:"


class ArtifactQuery(Lenient, frozen=True, kw_only=True):
    """How many are shown."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 200


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/artifacts/upload", roles=["work"], raw_body=True, answers={201: None})
async def upload_artifact(call: Call[None, Nothing]) -> Answer:
    """Keep a file of a job that is the caller's."""
    try:
        raw = await whole_upload(call, call.engine.limits.artifact + ROOM_FOR_FIELDS)
    except TooLarge as error:
        raise refused(413, "artifact_too_large", str(error)) from None
    try:
        form = parts(call.headers.get("content-type"), raw)
    except Malformed as error:
        raise refused(422, "invalid_queue_payload", str(error)) from None
    for field in ("file", "workerId", "name"):
        if field not in form:
            raise refused(422, "invalid_queue_payload", f"the form has no {field}")
    file = form["file"]
    kept = await keep(
        call.engine,
        call.who.tenant,
        queue(call),
        call.path["job_id"],
        worker_id=form["workerId"].text(),
        name=form["name"].text(),
        content=file.content,
        content_type=form["contentType"].text() if "contentType" in form else file.content_type,
        digest=form["digest"].text() if "digest" in form else None,
    )
    return answer(encode.artifact(kept), 201)


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/artifacts", roles=["read"], query=ArtifactQuery, answers={200: None})
async def list_artifacts(call: Call[None, ArtifactQuery]) -> Answer:
    """List the artifacts of a job, newest first."""
    found = await newest(call.engine, call.who.tenant, call.path["job_id"], call.query.limit)
    return answer({"items": [encode.artifact(one) for one in found]})


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/artifacts/{{artifact_id}}/download", roles=["read"], answers={200: None})
async def download_artifact(call: Call[None, Nothing]) -> Answer:
    """Read a file, under the last part of its name."""
    try:
        job_id = (await call.engine.reads.job(call.who.tenant, wire.job_id(call.path["job_id"]))).id
        if await call.engine.artifacts.home(call.who.tenant, call.path["artifact_id"]) != job_id:
            raise refused(409, "artifact_job_mismatch", f"the artifact does not belong to job {job_id}")
        download = await call.engine.artifacts.read(call.who.tenant, job_id, call.path["artifact_id"])
    except Invalid as error:  # a link has no bytes here
        raise refused(404, "artifact_file_missing", str(error)) from None
    found = download.artifact
    return Answer(
        200,
        media_type=served_as(found.content_type),
        headers={
            "content-length": str(download.end - download.start),
            "content-disposition": disposition(found.name),
            "content-security-policy": "sandbox; default-src 'none'",
        },
        stream=download.chunks,
    )


async def keep(
    engine: Engine,
    tenant: str,
    desk: Queue,
    job_id: str,
    *,
    worker_id: str,
    name: str,
    content: bytes,
    content_type: str | None,
    digest: str | None,
) -> Artifact:
    """Keep a file under the grant of this worker; a digest that was announced must prove true."""
    if digest and not digest.startswith(_DIGEST):
        raise Invalid("digest is written as sha256: and 64 hexadecimal digits", pointer="/digest")
    holder = await desk.holder(job_id, worker_id)
    try:
        return await engine.artifacts.put(
            tenant, holder, name, _once(content), content_type=content_type or None, size=len(content),
            sha256=digest.removeprefix(_DIGEST) if digest else None,
        )  # fmt: skip
    except TooLarge as error:
        raise refused(413, "artifact_too_large", str(error)) from None
    except Conflict:
        raise refused(409, "job_ownership_mismatch", f"job {job_id} was lost during the upload") from None


async def newest(engine: Engine, tenant: str, job_id: str, limit: int) -> list[Artifact]:
    """Up to so many artifacts of a job, from as many pages as that takes."""
    found: list[Artifact] = []
    before: tuple[int, str] | None = None
    while len(found) < limit:
        size = min(limit - len(found), LONGEST_PAGE)
        page = await engine.artifacts.list(tenant, job_id, before=before, limit=size)
        found += page
        if len(page) < size:
            break
        before = (page[-1].created_at, page[-1].id)
    return found


def disposition(name: str) -> str:
    """A download under the last part of a path; what a header cannot say is replaced."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in last)
    return f'attachment; filename="{plain}"'


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
