"""Artifacts: named files and links of a job, and the lifecycle of their stored objects.

An upload first writes its bytes under an orphan key, which garbage collection deletes after a while. The transaction
that publishes the artifact removes the key from the orphans. Readers never see partial files, and none is leaked.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from interlock.domain.job import Rejected
from interlock.errors import Error, Invalid, TooLarge, Unavailable, Unsatisfiable

UPLOAD_SECONDS: Final = 3600.0
STALLED_SECONDS: Final = 60.0
UNFINISHED_KEPT_SECONDS: Final = 2 * UPLOAD_SECONDS  # longer than any upload may take
REPLACED_KEPT_SECONDS: Final = 3600.0  # lets downloads in progress finish
COLLECT_AGAIN_SECONDS: Final = 300.0
MAX_URL_LENGTH: Final = 2048
STEP_RESULTS: Final = "interlock.step/"  # prefix of those that hold large results of steps; a redrive copies them
PLAIN_BYTES: Final = "application/octet-stream"
# Types that no browser executes or renders as a page of this origin. All others are served as application/octet-stream
# regardless of the type that the worker declared.
INERT: Final = frozenset(
    {"application/gzip", "application/json", "application/x-ndjson", "application/zip", "audio/mpeg", "audio/wav",
     "image/gif", "image/jpeg", "image/png", "image/webp", "text/csv", "text/markdown", "text/plain", "video/mp4"}
)  # fmt: skip

_TOKEN = r"[A-Za-z0-9!#$&^_.+-]+"
_CONTENT_TYPE: Final = re.compile(
    rf'{_TOKEN}/{_TOKEN}(?:[ ]?;[ ]?{_TOKEN}=(?:{_TOKEN}|"[\x20\x21\x23-\x5b\x5d-\x7e]*"))*'
)
_URL_CHARACTERS: Final = re.compile(r"[!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]+")
_RANGE: Final = re.compile(r"bytes=([0-9]{0,19})-([0-9]{0,19})")


class Holder(NamedTuple):
    """The lease holder of a job; only it can add artifacts."""

    job_id: str
    fence: int
    worker: str


class File(NamedTuple):
    """A small file sent as part of another request."""

    name: str
    content: bytes
    content_type: str | None = None


class Link(NamedTuple):
    """A named URL; stored, never fetched."""

    name: str
    url: str


class NewArtifact(NamedTuple):
    """An artifact to publish: a file whose bytes are stored under its key, or a link."""

    job_id: str
    fence: int
    worker: str
    id: str
    name: str
    size: int | None = None
    sha256: bytes | None = None
    content_type: str | None = None
    key: str | None = None
    url: str | None = None

    @property
    def holder(self) -> Holder:
        return Holder(self.job_id, self.fence, self.worker)


class Artifact(NamedTuple):
    """A published artifact: a file with size, hash and object key, or a link with a URL."""

    job_id: str
    fence: int
    worker: str
    id: str
    name: str
    size: int | None
    sha256: bytes | None
    content_type: str | None
    key: str | None
    url: str | None
    created_at: int


class Stream(AsyncIterator[bytes]):
    """A byte stream whose first chunk is already read; close it if you do not read it to the end."""

    def __init__(self, first: bytes | None, rest: AsyncGenerator[bytes, None]) -> None:
        self._first, self._rest = first, rest

    async def __anext__(self) -> bytes:
        if self._first is None:
            return await anext(self._rest)
        first, self._first = self._first, None
        return first

    async def aclose(self) -> None:
        self._first = None
        await self._rest.aclose()


class Download(NamedTuple):
    """An artifact and its bytes from start to end; `partial` if a range was requested."""

    artifact: Artifact
    start: int
    end: int
    chunks: Stream
    partial: bool = False


class Opening(NamedTuple):
    """An upload about to start: its lease holder, object key and announced size."""

    holder: Holder
    name: str
    key: str
    size: int = 0


class Orphan(NamedTuple):
    """An object key that no artifact references; found across tenants."""

    tenant: str
    key: str


class Arrangement(NamedTuple):
    """The result of publishing a batch of artifacts."""

    answers: list[Artifact | Rejected]
    visible: list[Artifact]
    spare: list[str]  # keys that were written but not published
    replaced: list[str]  # keys of replaced artifacts
    growth: int


def admit(
    openings: Sequence[Opening],
    *,
    faults: Mapping[Holder, Error],
    there: Iterable[Artifact],
    used: int,
    quota: int | None,
) -> list[Rejected | None]:
    """Reject uploads that could not be published, before reading any of their bytes."""
    sizes = {(artifact.job_id, artifact.name): artifact.size or 0 for artifact in there}
    answers: list[Rejected | None] = []
    for holder, name, _, size in openings:
        more = size - sizes.get((holder.job_id, name), 0)
        if holder in faults:
            answers.append(Rejected(faults[holder]))
        elif _exceeds(quota, used, more):
            answers.append(_over_quota(quota, used + more))
        else:
            answers.append(None)
    return answers


def arrange(
    items: Sequence[NewArtifact],
    *,
    faults: Mapping[Holder, Error],
    there: Iterable[Artifact],
    safe: Collection[str],
    used: int,
    quota: int | None,
    now: int,
    whole: bool,
) -> Arrangement:
    """Decide on each new artifact in order: the same name replaces, identical content changes nothing.

    `there` are the current artifacts with these names, `safe` the keys whose bytes are written and not yet collected.
    With `whole`, one rejection rejects all of them.
    """
    before = {(artifact.job_id, artifact.name): artifact for artifact in there}
    after = dict(before)
    answers: list[Artifact | Rejected] = []
    growth = 0
    for new in items:
        old = after.get((new.job_id, new.name))
        more = (new.size or 0) - ((old.size or 0) if old else 0)
        if new.holder in faults:
            answers.append(Rejected(faults[new.holder]))
        elif old is not None and old.id == new.id:  # a repeated call whose response was lost
            answers.append(old)
        elif new.key is not None and new.key not in safe:
            answers.append(
                Rejected(Unavailable(f"the bytes of {new.name!r} were given up meanwhile; upload them again"))
            )
        elif old is not None and _same_content(old, new):
            answers.append(old)
        elif _exceeds(quota, used + growth, more):
            answers.append(_over_quota(quota, used + growth + more))
        else:
            growth += more
            after[new.job_id, new.name] = artifact = Artifact(*new, now)
            answers.append(artifact)
    refusal = next((answer for answer in answers if isinstance(answer, Rejected)), None)
    if whole and refusal is not None:
        answers, after, growth = [a if isinstance(a, Rejected) else refusal for a in answers], before, 0
    visible = [artifact for key, artifact in after.items() if artifact is not before.get(key)]
    taken = {artifact.key for artifact in after.values()}
    return Arrangement(
        answers,
        visible,
        spare=[new.key for new in items if new.key is not None and new.key in safe and new.key not in taken],
        replaced=[old.key for old in before.values() if old.key is not None and old.key not in taken],
        growth=growth,
    )


def _same_content(old: Artifact, new: NewArtifact) -> bool:
    return (old.size, old.sha256, old.content_type, old.url) == (new.size, new.sha256, new.content_type, new.url)


def _exceeds(quota: int | None, used: int, more: int) -> bool:
    """Return whether the quota is exceeded. A tenant over its quota can still replace a file by a smaller one."""
    return quota is not None and more > 0 and used + more > quota


def _over_quota(quota: int | None, size: int) -> Rejected:
    return Rejected(TooLarge("the tenant's store of artifacts", size, quota or 0))


def content_type(value: str | None) -> str:
    """Return a media type that is safe in a header, or raise Invalid."""
    if value is None:
        return PLAIN_BYTES
    if len(value) > 200 or not _CONTENT_TYPE.fullmatch(value):
        raise Invalid(f"{value[:200]!r} is not a media type such as text/plain", pointer="/content_type")
    return value


def served_as(content_type: str | None) -> str:
    """Return the media type to serve a file with."""
    known = (content_type or "").partition(";")[0].strip().lower() in INERT
    return content_type if known and content_type is not None else PLAIN_BYTES


def link_url(value: str) -> str:
    """Return an http or https URL, or raise Invalid for anything that browsers and parsers interpret differently."""
    if len(value) > MAX_URL_LENGTH:
        raise Invalid(f"url has {len(value)} characters: the limit is {MAX_URL_LENGTH}", pointer="/url")
    try:
        parts = urlsplit(value) if _URL_CHARACTERS.fullmatch(value) else None
        good = parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, good = None, False
    if parts is None or not good:
        raise Invalid("url must be an absolute http or https address, percent-encoded", pointer="/url")
    if "@" in parts.netloc:
        raise Invalid("url must not carry a user name or password", pointer="/url")
    return value


def span(wanted: str | None, size: int) -> tuple[int, int] | None:
    """Return the half-open byte range that a Range header requests, or None for the entire file.

    HTTP allows a server to ignore a malformed range, so it is ignored. Multiple ranges, and a range that starts after
    the end, are rejected.
    """
    if wanted is not None and wanted.strip().startswith("bytes=") and "," in wanted:
        raise Unsatisfiable(size, "one range is read at a time")
    match = _RANGE.fullmatch(wanted.strip()) if wanted is not None else None
    if match is None or match[0] == "bytes=-":
        return None
    first, last = match.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= size:
        raise Unsatisfiable(size)
    return start, end
