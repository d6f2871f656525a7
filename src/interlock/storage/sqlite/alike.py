"""Jobs of one transaction that make the same move: what their rows of history have in common is said once."""

from __future__ import annotations

from collections.abc import Iterable

from interlock.domain.audit import hash_alike
from interlock.storage.sqlite.connection import Connection


def move_alike(
    connection: Connection, seqs: Iterable[int], befores: Iterable[bytes], version: int, left: str | None, to: str,
    verb: str, actor: str, attempt: int, fence: int,
) -> list[bytes]:  # fmt: skip
    """The hashes of the next rows of these jobs, left for the trigger that writes history as well.

    Each follows from the hash of the job's last row, or from what its chain begins with.
    """
    hashes = hash_alike(befores, version, left, to, verb, actor, attempt, fence, None, None, connection.now)
    connection.hashes.update(zip(seqs, hashes, strict=True))
    return hashes
