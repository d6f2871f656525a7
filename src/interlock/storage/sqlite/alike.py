"""Jobs of one transaction that make the same move: what their rows of history have in common is said once."""

from __future__ import annotations

from typing import Final

from interlock.domain.audit import link
from interlock.storage.sqlite.connection import Connection
from interlock.storage.statements import load

_INSERT: Final = load("interlock.storage.sqlite", "change.sql")["insert_alike"]


class Alike:
    """Rows that differ only in their job, and so in their hash."""

    def __init__(
        self, tenant: str, at: int, version: int, origin: str | None, to: str, verb: str, actor: str, attempt: int,
        fence: int,
    ) -> None:  # fmt: skip
        self._shared = (tenant, at, version, origin, to, verb, actor, attempt, fence)
        self._hash = link(tenant, version, origin, to, verb, actor, attempt, fence, None, None, at)
        self._rows: list[tuple[int, bytes]] = []

    def add(self, seq: int, id: str, head: bytes | None) -> bytes:
        """One more row; its hash."""
        hash = self._hash(head, id)
        self._rows.append((seq, hash))
        return hash

    def seqs(self) -> list[int]:
        return [seq for seq, _ in self._rows]

    def write(self, connection: Connection) -> None:
        connection.insert(_INSERT, self._shared, self._rows)
