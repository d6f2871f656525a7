"""Files, links and orphans in the words tests use."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from interlock.domain.artifact import (
    Artifact,
    Holder,
    NewArtifact,
    Opening,
)  # fmt: skip
from interlock.domain.job import Job, Refused
from interlock.errors import Error
from tests.contract.builders import Desk, new_id

_numbers = itertools.count(1)


def new_key() -> str:
    return f"{next(_numbers):032x}"


def holder(job: Job) -> Holder:
    assert job.worker is not None
    return Holder(job.id, job.fence, job.worker)


def file(job: Job, name: str = "report.md", content: bytes = b"content", **fields: Any) -> NewArtifact:
    facts = {"size": len(content), "sha256": hashlib.sha256(content).digest(), "content_type": "text/plain"}
    return NewArtifact(*holder(job), **{"id": new_id(), "name": name, "key": new_key(), **facts, **fields})


def link(job: Job, name: str = "report.md", url: str = "https://example.org/report") -> NewArtifact:
    return NewArtifact(*holder(job), new_id(), name, url=url)


async def opened(desk: Desk, *items: NewArtifact) -> None:
    """Note the keys of files, as an upload does before its first byte."""
    openings = [Opening(new.holder, new.name, new.key) for new in items if new.key is not None]
    assert await desk.store.open_uploads(desk.tenant, openings, quota=None) == [None] * len(openings)


async def show(desk: Desk, *items: NewArtifact, quota: int | None = None) -> list[Artifact]:
    await opened(desk, *items)
    answers = await desk.store.show_artifacts(desk.tenant, items, quota=quota)
    assert not [answer for answer in answers if isinstance(answer, Refused)], answers
    return [answer for answer in answers if isinstance(answer, Artifact)]


async def refused(desk: Desk, *items: NewArtifact, quota: int | None = None) -> Error:
    """Why the last one is not shown."""
    answer = (await desk.store.show_artifacts(desk.tenant, items, quota=quota))[-1]
    assert isinstance(answer, Refused), answer
    return answer.error


async def listed(desk: Desk, job: Job, **fields: Any) -> list[Artifact]:
    return await desk.store.artifacts(desk.tenant, job.id, **{"before": None, "limit": 50, **fields})


async def due(desk: Desk) -> list[str]:
    """The keys of this tenant whose time has come."""
    return [orphan.key for orphan in await desk.store.due_orphans(10_000) if orphan.tenant == desk.tenant]


def keys(items: Sequence[NewArtifact | Artifact]) -> list[str | None]:
    return [item.key for item in items]
