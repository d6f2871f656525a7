"""Routes of artifacts: uploads as multipart forms, lists and downloads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from email.message import Message
from typing import Annotated, Final, NamedTuple

from msgspec import Meta

from interlock.api.adapters import Lenient
from interlock.api.long_poll import whole_upload
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.domain.artifact import Artifact, served_as
from interlock.domain.artifact import content_type as media_type
from interlock.engine.artifacts import MAX_PAGE_SIZE
from interlock.engine.engine import Engine
from interlock.errors import Conflict, Invalid, Malformed, TooLarge
from interlock.faces.moonmind import model
from interlock.faces.moonmind.jobs import QueueService, queue
from interlock.faces.moonmind.model import BASE, reject

MAX_PARTS: Final = 20
MAX_HEAD_BYTES: Final = 2 * 1024  # the library takes quadratic time for long ones


class Part(NamedTuple):
    """One field of a form; a file also has a content type."""

    content: bytes
    content_type: str | None

    def text(self) -> str:
        try:
            return self.content.decode()
        except UnicodeDecodeError:
            raise Malformed("a field of the form is not UTF-8") from None


def parts(content_type: str | None, body: bytes) -> dict[str, Part]:
    """The fields of a form by name; a repeated name is rejected."""
    boundary = _boundary(content_type)
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary, MAX_PARTS + 1)
    if len(pieces) < 3 or len(pieces) > MAX_PARTS + 1 or not pieces[-1].startswith(b"--"):
        raise Malformed("the form is incomplete or has too many fields")
    found: dict[str, Part] = {}
    for piece in pieces[1:-1]:
        head, blank, content = piece.lstrip(b" \t").removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name, kind = _heading(head)
        if not blank or name is None or name in found:
            raise Malformed("a field of the form has no name or no content, or is repeated")
        found[name] = Part(content, kind)
    return found


def _boundary(content_type: str | None) -> bytes:
    if content_type is None or len(content_type) > MAX_HEAD_BYTES:
        raise Malformed("the body must be multipart/form-data with a boundary")
    heading = Message()
    heading["content-type"] = content_type
    boundary = _parameter(heading, "boundary", "content-type")
    if heading.get_content_type() != "multipart/form-data" or boundary is None:
        raise Malformed("the body must be multipart/form-data with a boundary")
    return boundary.encode("latin-1", errors="replace")


def _heading(head: bytes) -> tuple[str | None, str | None]:
    """Name and content type of a part."""
    if len(head) > MAX_HEAD_BYTES:
        raise Malformed("the headers of a field are too long")
    heading = Message()
    for line in head.split(b"\r\n"):
        field, colon, value = line.decode(errors="replace").partition(":")
        if colon and field.lower() not in heading:
            heading[field] = value.strip()
    return _parameter(heading, "name", "content-disposition"), heading.get("content-type")


def _parameter(heading: Message, name: str, header: str) -> str | None:
    """A parameter of a header; the library fails on some continuations of RFC 2231."""
    try:
        value = heading.get_param(name, header=header)
    except (TypeError, ValueError, LookupError, AttributeError):
        raise Malformed(f"the header {header} cannot be read") from None
    return value if isinstance(value, str) and value else None


routes = RouteTable()

FIELDS_BYTES: Final = 64 * 1024  # of a form beside its file
MAX_NAME_LENGTH: Final = 512
_DIGEST: Final = "sha256:"


class ArtifactQuery(Lenient, frozen=True, kw_only=True):
    """The length of a list."""

    limit: Annotated[int, Meta(ge=1, le=500)] = 200


@routes.add("POST", f"{BASE}/jobs/{{job_id}}/artifacts/upload", roles=["work"], raw_body=True, answers={201: None})
async def upload_artifact(call: RequestContext[None, Nothing]) -> Response:
    """Store a file of a job that is leased to the caller."""
    try:
        raw = await whole_upload(call, call.engine.limits.artifact + FIELDS_BYTES)
    except TooLarge as error:
        raise reject(413, "artifact_too_large", str(error)) from None
    try:
        form = parts(call.headers.get("content-type"), raw)
    except Malformed as error:
        raise reject(422, "invalid_queue_payload", str(error)) from None
    for field in ("file", "workerId", "name"):
        if field not in form:
            raise reject(422, "invalid_queue_payload", f"the form has no field {field!r}")
    file = form["file"]
    stored = await store(
        call.engine,
        call.who.tenant,
        queue(call),
        call.path["job_id"],
        worker_id=form["workerId"].text(),
        name=form["name"].text(),
        content=file.content,
        content_type=(form["contentType"].text() if "contentType" in form else "") or file.content_type,
        digest=form["digest"].text() if "digest" in form else None,
    )
    return respond(model.encode_artifact(stored), 201)


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/artifacts", roles=["read"], query=ArtifactQuery, answers={200: None})
async def list_artifacts(call: RequestContext[None, ArtifactQuery]) -> Response:
    """List the artifacts of a job, newest first."""
    found = await newest(call.engine, call.who.tenant, model.decode_id(call.path["job_id"]), call.query.limit)
    return respond({"items": [model.encode_artifact(one) for one in found]})


@routes.add("GET", f"{BASE}/jobs/{{job_id}}/artifacts/{{artifact_id}}/download", roles=["read"], answers={200: None})
async def download_artifact(call: RequestContext[None, Nothing]) -> Response:
    """Download a file, named by the last part of its path."""
    try:
        job_id, artifact_id = (await queue(call).job(call.path["job_id"])).id, model.decode_id(call.path["artifact_id"])
        if await call.engine.artifacts.home(call.who.tenant, artifact_id) != job_id:
            raise reject(409, "artifact_job_mismatch", f"the artifact does not belong to job {job_id}")
        download = await call.engine.artifacts.read(call.who.tenant, job_id, artifact_id)
    except Invalid as error:  # a link has no content
        raise reject(404, "artifact_file_missing", str(error)) from None
    found = download.artifact
    return Response(
        200,
        media_type=served_as(found.content_type),
        headers={
            "content-length": str(download.end - download.start),
            "content-disposition": disposition(found.name),
            "content-security-policy": "sandbox; default-src 'none'",
        },
        stream=download.chunks,
    )


async def store(
    engine: Engine,
    tenant: str,
    service: QueueService,
    job_id: str,
    *,
    worker_id: str,
    name: str,
    content: bytes,
    content_type: str | None,
    digest: str | None,
) -> Artifact:
    """Store a file under the lease of this worker; a digest that was sent must match."""
    digest, name = (digest or "").strip(), _name(name)
    if digest and not digest.startswith(_DIGEST):
        raise Invalid("digest must be sha256: and 64 hexadecimal digits", pointer="/digest")
    holder = await service.holder(job_id, worker_id)
    try:
        return await engine.artifacts.put(
            tenant, holder, name, _once(content), content_type=_media_type(content_type), size=len(content),
            sha256=digest.removeprefix(_DIGEST) or None, max_name_length=MAX_NAME_LENGTH,
        )  # fmt: skip
    except TooLarge as error:
        raise reject(413, "artifact_too_large", str(error)) from None
    except Conflict:
        raise reject(409, "job_ownership_mismatch", f"job {job_id} was lost during the upload") from None


async def newest(engine: Engine, tenant: str, job_id: str, limit: int) -> list[Artifact]:
    """Up to `limit` artifacts of a job, newest first."""
    found: list[Artifact] = []
    before: tuple[int, str] | None = None
    while len(found) < limit:
        size = min(limit - len(found), MAX_PAGE_SIZE)
        page = await engine.artifacts.list(tenant, job_id, before=before, limit=size)
        found += page
        if len(page) < size:
            break
        before = (page[-1].created_at, page[-1].id)
    return found


def _name(value: str) -> str:
    """A relative path, normalized as MoonMind's server does."""
    name = value.strip().replace("\\", "/").strip()
    while name.startswith("./"):
        name = name[2:]
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise Invalid("name must be a relative path without '..'", pointer="/name")
    return name


def _media_type(value: str | None) -> str | None:
    """A media type as it was sent, unless it is not a valid one."""
    try:
        return media_type((value or "").strip() or None)
    except Invalid:
        return None


def disposition(name: str) -> str:
    """The header of a download, with the last part of the path as its file name."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    plain = "".join(c if c.isascii() and c.isprintable() and c not in '"\\' else "_" for c in last)
    return f'attachment; filename="{plain}"'


async def _once(content: bytes) -> AsyncIterator[bytes]:
    yield content
