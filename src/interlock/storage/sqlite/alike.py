"""Jobs of one transaction that make the same move: what their rows of history have in common is said once."""

from __future__ import annotations

from interlock.domain.audit import link
from interlock.storage.sqlite.connection import Connection


class Alike:
    """Moves that differ only in their job; each leaves the hash of its row for the trigger that writes history."""

    def __init__(
        self, connection: Connection, version: int, left: str | None, to: str, verb: str, actor: str, attempt: int,
        fence: int,
    ) -> None:  # fmt: skip
        self._hashes = connection.hashes
        self._hash = link(version, left, to, verb, actor, attempt, fence, None, None, connection.now)
        self.seqs: list[int] = []

    def add(self, seq: int, before: bytes) -> bytes:
        """One more job, and the hash of its last row or what its chain begins with; the hash of its next row."""
        self.seqs.append(seq)
        hash = self._hashes[seq] = self._hash(before)
        return hash
