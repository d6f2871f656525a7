"""Jobs of one transaction that make the same transition: what their rows of history have in common is encoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from interlock.domain.audit import hash_batch
from interlock.storage.sqlite.connection import Connection


def hash_transitions(
    connection: Connection, seqs: Sequence[int], befores: Iterable[bytes], version: int, left: str | None, to: str,
    verb: str, actor: str, attempt: int, fence: int, metadatas: Sequence[str | None] | None = None,
) -> list[bytes]:  # fmt: skip
    """The hashes of the next rows of these jobs, left with their metadata for what writes job and history.

    Each follows from the hash of the job's last row, or from what its chain begins with.
    """
    hashes = hash_batch(befores, metadatas, connection.now, version, left, to, verb, actor, attempt, fence)
    connection.hashes.update(zip(seqs, hashes, strict=True))
    if metadatas is not None:
        connection.metadatas.update(zip(seqs, metadatas, strict=True))
    elif connection.metadatas and verb != "claim":  # those of another verb in this transaction
        for seq in seqs:
            connection.metadatas.pop(seq, None)
    return hashes
