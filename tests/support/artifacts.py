"""Uploading and reading artifacts in tests, in few words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from interlock.domain.artifact import Artifact, Holder
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.wire import Limits, job_request

TENANT = "acme"
LIMITS = Limits(artifact=20 * 1024 * 1024)


async def lease(engine: Engine, who: Principal) -> Holder:
    await engine.jobs.enqueue(who, job_request({"type": "t"}))
    (job,) = await engine.leases.claim(TENANT, ClaimFilter("w", lease_seconds=3600))
    return Holder(job.id, job.fence, "w")


async def stream(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def put(
    engine: Engine, holder: Holder, name: str = "a.bin", content: bytes = b"content", **fields: Any
) -> Artifact:
    return await engine.artifacts.put(TENANT, holder, name, stream(content), **fields)


async def content_of(engine: Engine, holder: Holder, artifact: Artifact, wanted: str | None = None) -> bytes:
    download = await engine.artifacts.read(TENANT, holder.job_id, artifact.id, wanted=wanted)
    return b"".join([chunk async for chunk in download.chunks])


async def names(engine: Engine, holder: Holder) -> list[str]:
    return [artifact.name for artifact in await engine.artifacts.list(TENANT, holder.job_id)]


def paths(root: Path) -> list[Path]:
    """Every file below a directory."""
    return sorted(path for path in root.rglob("*") if not path.is_dir())
