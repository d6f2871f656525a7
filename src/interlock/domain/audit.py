"""The hash that chains the rows of a job's history, the same bytes on every engine."""

from __future__ import annotations

from hashlib import sha256


def history_hash(
    previous: bytes | None,
    tenant: str,
    job_id: str,
    version: int,
    from_status: str | None,
    to_status: str,
    verb: str,
    actor: str,
    attempt: int,
    fence: int,
    reason: str | None,
    metadata: str | None,
    at: int,
) -> bytes:
    """SHA-256 over the hash before and every field as length:text, where a null is a dash."""
    number, tries, grant, time = str(version), str(attempt), str(fence), str(at)
    text = (
        f"{len(tenant)}:{tenant}{len(job_id)}:{job_id}{len(number)}:{number}"
        f"{'-' if from_status is None else f'{len(from_status)}:{from_status}'}{len(to_status)}:{to_status}"
        f"{len(verb)}:{verb}{len(actor)}:{actor}{len(tries)}:{tries}{len(grant)}:{grant}"
        f"{'-' if reason is None else f'{len(reason)}:{reason}'}"
        f"{'-' if metadata is None else f'{len(metadata)}:{metadata}'}{len(time)}:{time}"
    )
    if not text.isascii():  # lengths count bytes, so other text is measured field by field
        fields = (tenant, job_id, number, from_status, to_status, verb, actor, tries, grant, reason, metadata, time)
        text = "".join("-" if f is None else f"{len(f.encode())}:{f}" for f in fields)
    return sha256((previous or b"") + text.encode()).digest()
