"""Artifacts: named files and links of a job, and what becomes of the bytes behind them.

The bytes of an upload are written first, under a key that belongs to nobody: an orphan, due to be collected. Only the
transaction that shows the artifact takes its key off that list: nothing is seen in part, nothing is left for good.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from interlock.domain.job import Rejected
from interlock.errors import Error, Invalid, TooLarge, Unavailable, Unsatisfiable

UPLOAD_SECONDS: Final = 3600.0
STALLED_SECONDS: Final = 60.0
UNFINISHED_KEPT_SECONDS: Final = 2 * UPLOAD_SECONDS  # longer than any upload may take
REPLACED_KEPT_SECONDS: Final = 3600.0  # so that a download under way may come to its end
COLLECT_AGAIN_SECONDS: Final = 300.0
MAX_URL_LENGTH: Final = 2048
PLAIN_BYTES: Final = "application/octet-stream"
# What no browser runs or renders as a page of ours; anything else leaves as plain bytes, whatever a worker called it.
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
    """The one who may add artifacts to a job: whoever works on it now."""

    job_id: str
    fence: int
    worker: str


class File(NamedTuple):
    """A small file that came along with something else."""

    name: str
    content: bytes
    content_type: str | None = None


class Link(NamedTuple):
    """A name for something elsewhere; kept, never fetched."""

    name: str
    url: str


class NewArtifact(NamedTuple):
    """A file whose bytes are safe under its key, or a link; to be shown."""

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
    """A file of a job with its size, hash and the key of its bytes, or a link with its URL; who added it, and when."""

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


class Opening(NamedTuple):
    """An upload about to begin: whose it is, where its bytes will be, and how many were announced."""

    holder: Holder
    name: str
    key: str
    size: int = 0


class Orphan(NamedTuple):
    """A key that no artifact points to, found across tenants."""

    tenant: str
    key: str


class Arrangement(NamedTuple):
    """What a batch of new artifacts comes to."""

    answers: list[Artifact | Rejected]
    visible: list[Artifact]
    spare: list[str]  # keys that were written in vain
    replaced: list[str]  # keys whose artifact made room
    growth: int


def admit(
    openings: Sequence[Opening],
    *,
    faults: Mapping[Holder, Error],
    there: Iterable[Artifact],
    used: int,
    quota: int | None,
) -> list[Rejected | None]:
    """Refuse uploads that could not be shown anyway, before a byte of them is taken."""
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
    """Decide on each new artifact, one after another: the same name replaces, the same content changes nothing.

    `there` are the artifacts that bear these names now, `safe` the keys whose bytes are written and not yet given up.
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
        elif old is not None and old.id == new.id:  # this very call, repeated after its answer was lost
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
    """A tenant that is beyond its quota may still replace a file by a smaller one."""
    return quota is not None and more > 0 and used + more > quota


def _over_quota(quota: int | None, size: int) -> Rejected:
    return Rejected(TooLarge("the tenant's store of artifacts", size, quota or 0))


def content_type(value: str | None) -> str:
    """A media type that is safe in a header."""
    if value is None:
        return PLAIN_BYTES
    if len(value) > 200 or not _CONTENT_TYPE.fullmatch(value):
        raise Invalid(f"{value[:200]!r} is not a media type such as text/plain", pointer="/content_type")
    return value


def served_as(content_type: str | None) -> str:
    """The media type under which a file is handed out."""
    known = (content_type or "").partition(";")[0].strip().lower() in INERT
    return content_type if known and content_type is not None else PLAIN_BYTES


def link_url(value: str) -> str:
    """A plain http or https address; what browsers and parsers read differently is refused."""
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
    """The first byte and the one after the last that a Range header asks for; None means the whole.

    What is no range of bytes may be ignored, says HTTP, and is; several, and one beyond the end, are refused.
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
