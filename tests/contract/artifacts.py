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
from interlock.domain.job import Job, Rejected
from interlock.errors import Error
from tests.contract.builders import TenantQueue, new_id

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


async def opened(queue: TenantQueue, *items: NewArtifact) -> None:
    """Note the keys of files, as an upload does before its first byte."""
    openings = [Opening(new.holder, new.name, new.key) for new in items if new.key is not None]
    assert await queue.store.artifacts.open_uploads(queue.tenant, openings, quota=None) == [None] * len(openings)


async def show(queue: TenantQueue, *items: NewArtifact, quota: int | None = None) -> list[Artifact]:
    await opened(queue, *items)
    answers = await queue.store.artifacts.publish(queue.tenant, items, quota=quota)
    assert not [answer for answer in answers if isinstance(answer, Rejected)], answers
    return [answer for answer in answers if isinstance(answer, Artifact)]


async def refused(queue: TenantQueue, *items: NewArtifact, quota: int | None = None) -> Error:
    """Why the last one is not shown."""
    answer = (await queue.store.artifacts.publish(queue.tenant, items, quota=quota))[-1]
    assert isinstance(answer, Rejected), answer
    return answer.error


async def listed(queue: TenantQueue, job: Job, **fields: Any) -> list[Artifact]:
    return await queue.store.artifacts.page(queue.tenant, job.id, **{"before": None, "limit": 50, **fields})


async def due(queue: TenantQueue) -> list[str]:
    """The keys of this tenant whose time has come."""
    return [orphan.key for orphan in await queue.store.artifacts.due_orphans(10_000) if orphan.tenant == queue.tenant]


def keys(items: Sequence[NewArtifact | Artifact]) -> list[str | None]:
    return [item.key for item in items]
