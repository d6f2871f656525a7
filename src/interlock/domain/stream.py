"""Streams: named output of a job in chunks, numbered by offset over all attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from interlock.errors import LimitReached, StreamConflict

MAX_CHUNK_BYTES: Final = 64 * 1024
MAX_STREAMS: Final = 100  # of one job


class NewChunk(NamedTuple):
    """A chunk to append: the bytes, and whether they are UTF-8 text."""

    data: bytes
    is_text: bool


class Append(NamedTuple):
    """Chunks to append to a stream, from the lease holder of a job; `offset` is that of the first."""

    id: str
    fence: int
    worker: str
    name: str
    offset: int
    chunks: tuple[NewChunk, ...]


class Chunk(NamedTuple):
    """A stored chunk. `attempt` and `fence` name the run that wrote it."""

    offset: int
    attempt: int
    fence: int
    at: int
    is_text: bool
    data: bytes


class StreamInfo(NamedTuple):
    """A stream of a job: its number of chunks and bytes."""

    name: str
    chunks: int
    bytes: int
    updated_at: int


def admit(append: Append, streams: Sequence[StreamInfo], stored: Sequence[Chunk], *, limit: int) -> bool:
    """Return whether to write the chunks; False if they repeat stored ones of the same lease.

    `stored` has the chunks at the offsets of the append; `limit` is that of all streams of the job, in bytes.
    """
    end = next((one.chunks for one in streams if one.name == append.name), None)
    next_offset = end or 0
    if append.offset != next_offset:
        given = [(append.offset + i, append.fence, *chunk) for i, chunk in enumerate(append.chunks)]
        if [(one.offset, one.fence, one.data, one.is_text) for one in stored] == given:
            return False
        raise StreamConflict(append.id, append.name, append.offset, next_offset)
    if end is None and len(streams) >= MAX_STREAMS:
        raise LimitReached(append.id, "streams", MAX_STREAMS)
    if sum(one.bytes for one in streams) + sum(len(chunk.data) for chunk in append.chunks) > limit:
        raise LimitReached(append.id, "bytes of streams", limit)
    return True
