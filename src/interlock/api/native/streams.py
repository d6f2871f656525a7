"""Streams of a job: its output in chunks. The lease holder appends, readers follow."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from interlock.api import auth, stream
from interlock.api.native.leases import LeaseRequest, Seq, as_holder
from interlock.api.native.pagination import Limit
from interlock.api.routes import Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.domain.stream import Append, NewChunk
from interlock.errors import Invalid
from interlock.wire import responses
from interlock.wire.encode import chunk_to_dict, when

routes = RouteTable()


class ChunkPart(Request, frozen=True, kw_only=True):
    """A chunk: text, or other bytes as base64."""

    text: str | None = None
    base64: str | None = None

    def chunk(self, place: str) -> NewChunk:
        if (self.text is None) == (self.base64 is None):
            raise Invalid("a chunk has text or base64: expected exactly one of them", pointer=place)
        if self.text is not None:
            return NewChunk(self.text.encode(), True)
        try:
            return NewChunk(b64decode(self.base64 or "", validate=True), False)
        except ValueError:
            raise Invalid("base64 cannot be decoded: expected standard base64", pointer=f"{place}/base64") from None


class AppendRequest(LeaseRequest, frozen=True, kw_only=True):
    """Chunks to append; `offset` is that of the first."""

    offset: Seq
    chunks: Annotated[list[ChunkPart], Meta(min_length=1)]


class ChunkQuery(Request, frozen=True, kw_only=True):
    """Start of a page: the offset after which to read."""

    after: Annotated[int, Meta(ge=-1, le=2**63 - 1)] = -1
    limit: Limit = 50


@routes.add(
    "POST", "/v1/jobs/{job_id}/streams/{name}", roles=["work"], body=AppendRequest, sanitizes=True,
    answers={200: responses.Appended},
)  # fmt: skip
async def append_to_stream(call: RequestContext[AppendRequest, Nothing]) -> Response:
    """Append chunks to a stream. The same chunks at the same offset again get the same response."""
    body = call.body
    chunks = tuple(part.chunk(f"/chunks/{i}") for i, part in enumerate(body.chunks))

    async def act(job_id: str, worker: str) -> int:
        append = Append(job_id, body.fence, worker, call.path["name"], body.offset, chunks)
        return await call.engine.streams.append(call.who.tenant, append)

    return respond({"next": await as_holder(call, body, act)})


@routes.add(
    "GET", "/v1/jobs/{job_id}/streams", roles=["read"], on_condition=["work"], answers={200: responses.StreamList}
)  # fmt: skip
async def list_streams(call: RequestContext[None, Nothing]) -> Response:
    """List the streams of a job, with their size."""
    job = await auth.readable(call)
    found = await call.engine.streams.of_job(call.who.tenant, job.id)
    return respond({"items": [one._asdict() | {"updated_at": when(one.updated_at)} for one in found]})


@routes.add(
    "GET", "/v1/jobs/{job_id}/streams/{name}", roles=["read"], on_condition=["work"], query=ChunkQuery,
    answers={200: responses.ChunkPage},
)  # fmt: skip
async def read_stream(call: RequestContext[None, ChunkQuery]) -> Response:
    """Read chunks with an offset above `after`, in order. Give `next` as `after` to continue."""
    job = await auth.readable(call)
    page = await call.engine.streams.page(
        call.who.tenant, job.id, call.path["name"], after=call.query.after, limit=call.query.limit
    )
    return respond({"items": [chunk_to_dict(one) for one in page.chunks], "next": page.next, "ended": page.ended})


@routes.add(
    "GET", "/v1/jobs/{job_id}/streams/{name}/follow", roles=["read"], answers={200: None}, produces=stream.MEDIA_TYPE,
    headers=["Last-Event-ID"],
)  # fmt: skip
async def follow_stream(call: RequestContext[None, Nothing]) -> Response:
    """Stream the chunks as they arrive until the job is terminal; `Last-Event-ID` resumes."""
    given = call.headers.get("last-event-id") or "-1"
    if not re.fullmatch(r"-1|[0-9]{1,18}", given):
        raise Invalid("Last-Event-ID is not the offset of a chunk", pointer="/last-event-id")
    tenant, name = call.who.tenant, call.path["name"]
    job = await call.engine.queries.job(tenant, call.job_id)
    await call.engine.streams.page(tenant, job.id, name, limit=1)  # rejects an invalid name
    pages = call.engine.streams.follow(tenant, job.id, name, after=int(given))

    async def pieces() -> AsyncIterator[bytes]:
        async for page in pages:
            yield (
                b"".join(
                    b"id: %d\nevent: chunk\ndata: %b\n\n" % (one.offset, msgspec.json.encode(chunk_to_dict(one)))
                    for one in page
                )
                or stream.KEEP_ALIVE
            )
        yield stream.END

    return stream.streamed(call, pieces(), pages)
