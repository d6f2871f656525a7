"""Values that are too large for a job: they are stored as artifacts, and read again where they are used."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from interlock.client.port import Client
from interlock.domain.artifact import STEP_RESULTS, Artifact
from interlock.errors import ArtifactLost

RESULT: Final = "result.json"  # the artifact that holds the result of a job

MAX_NAME_LENGTH: Final = 200
PAGE: Final = 200


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The artifact that holds a value. The digest is part of what the history covers."""

    name: str
    size: int
    sha256: str
    id: str | None = None


class _StepReference(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"artifact": "interlock.artifact"}
):
    artifact: Reference


class _ResultReference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    artifact: Reference


def step_name(name: str, occurrence: int) -> str:
    """Return the name of the artifact for the result of a step."""
    whole = f"{STEP_RESULTS}{name}/{occurrence}.json"
    if len(whole) <= MAX_NAME_LENGTH:
        return whole
    return f"{STEP_RESULTS}{hashlib.sha256(name.encode()).hexdigest()}/{occurrence}.json"


def reference_to(name: str, content: bytes, *, id: str | None = None) -> Reference:
    return Reference(name, len(content), hashlib.sha256(content).hexdigest(), id)


def in_step(reference: Reference) -> str:
    """Return what a step records instead of its result."""
    return msgspec.json.encode(_StepReference(reference)).decode()


def in_result(reference: Reference) -> str:
    """Return what a job has instead of its result."""
    return msgspec.json.encode(_ResultReference(reference)).decode()


async def step_result(client: Client, job_id: str, recorded: str | None) -> str | None:
    """Return the result of a step, read from its artifact if it was too large."""
    return await _read(client, job_id, recorded, _StepReference, STEP_RESULTS)


async def job_result(client: Client, job_id: str, result: str | None) -> str | None:
    """Return the result of a job, read from its artifact if it was too large."""
    return await _read(client, job_id, result, _ResultReference, RESULT)


async def _read(client: Client, job_id: str, text: str | None, kind: Any, prefix: str) -> str | None:
    if text is None or '"sha256"' not in text:
        return text
    try:
        reference: Reference = msgspec.json.decode(text, type=kind).artifact
    except msgspec.MsgspecError:
        return text
    if not reference.name.startswith(prefix):
        return text
    found = await _named(client, job_id, reference.name)
    download = await client.artifacts.read(job_id, found.id)
    content = b"".join([piece async for piece in download.chunks])
    if hashlib.sha256(content).hexdigest() != reference.sha256:
        raise ArtifactLost(found.id, f"its bytes are not those of the value that job {job_id} recorded")
    return content.decode()


async def _named(client: Client, job_id: str, name: str) -> Artifact:
    """Return an artifact by its name: a redrive has copies with other IDs."""
    before: tuple[int, str] | None = None
    while page := await client.artifacts.list(job_id, before=before, limit=PAGE):
        for artifact in page:
            if artifact.name == name:
                return artifact
        before = (page[-1].created_at, page[-1].id)
    raise ArtifactLost(name, f"job {job_id} has no such artifact")
