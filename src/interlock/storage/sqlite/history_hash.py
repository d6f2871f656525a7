"""History hashes of jobs that make the same transition: the fields they share are encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interlock.domain.audit import hash_batch
from interlock.storage.sqlite.connection import Connection


def hash_transitions(
    connection: Connection, seqs: Sequence[int], befores: Iterable[bytes], version: int, left: str | None, to: str,
    verb: str, actor: str, attempt: int, fence: int, metadatas: Sequence[str | None] | None = None,
) -> list[bytes]:  # fmt: skip
    """Compute the hashes of the next history rows, and store them with their metadata for the triggers of `job`.

    Each hash covers the hash of the job's last row, or the origin of its chain.
    """
    hashes = hash_batch(befores, metadatas, connection.now, version, left, to, verb, actor, attempt, fence)
    connection.hashes.update(zip(seqs, hashes, strict=True))
    if metadatas is not None:
        connection.metadatas.update(zip(seqs, metadatas, strict=True))
    elif connection.metadatas and verb != "claim":  # drop metadata of an earlier operation in this transaction
        for seq in seqs:
            connection.metadatas.pop(seq, None)
    return hashes
