"""The hash over a history row: the same bytes in Python and in PostgreSQL, and no two rows with the same text."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from interlock.domain.audit import history_hash
from interlock.domain.lifecycle import Status, Verb
from tests.support.postgres import OWNER, Postgres
from tests.support.stores import TEMPLATE

ID = "0193a1b2-c3d4-7e5f-8a9b-000000000001"

# What both engines can store: any text without NUL and without lone surrogates.
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40)


class Row(NamedTuple):
    previous: bytes | None
    tenant: str
    job_id: str
    version: int
    from_status: str | None
    to_status: str
    verb: str
    actor: str
    attempt: int
    fence: int
    reason: str | None
    metadata: str | None
    at: int


rows = st.builds(
    Row,
    previous=st.none() | st.binary(min_size=32, max_size=32),
    tenant=texts,
    job_id=st.uuids().map(str),
    version=st.integers(1, 2**31 - 1),
    from_status=st.none() | st.sampled_from(list(map(str, Status))),
    to_status=st.sampled_from(list(map(str, Status))),
    verb=st.sampled_from(list(map(str, Verb))) | texts,
    actor=texts,
    attempt=st.integers(1, 100),
    fence=st.integers(0, 2**63 - 1),
    reason=st.none() | texts,
    metadata=st.none() | texts,
    at=st.integers(0, 253_402_300_799_999_999),
)


class Server:
    """The function in the database, called from blocking tests."""

    def __init__(self, dsn: str) -> None:
        self._runner = asyncio.Runner()
        self._connection: asyncpg.Connection[asyncpg.Record] = self._runner.run(asyncpg.connect(dsn))

    def hash(self, row: Row) -> bytes:
        return bytes(self._runner.run(self._call(row)))

    async def _call(self, row: Row) -> Any:
        return await self._connection.fetchval(
            "select interlock.history_hash(coalesce($1, interlock.origin($2, $3)), $4, $5::text::interlock.status, "
            "$6::text::interlock.status, $7, $8, $9, $10, $11, $12, $13)",
            *row,
        )

    def close(self) -> None:
        self._runner.run(self._connection.close())
        self._runner.close()


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Iterator[Server]:
    opened = Server(postgres.dsn(TEMPLATE, user=OWNER))
    yield opened
    opened.close()


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(row=rows)
def test_postgresql_computes_the_same_hash(server: Server, row: Row) -> None:
    assert server.hash(row) == history_hash(*row)


@pytest.mark.parametrize(
    "text",
    ["", "a", "ä", "🐢", "e\u0301", "\u202e", "1:a", "-", "a" * 10_000, "\x01\x7f\x80\uffff\U0010ffff", "\r\n\t"],
)
def test_postgresql_computes_the_same_hash_of_unusual_text(server: Server, text: str) -> None:
    row = Row(None, text, ID, 1, None, "queued", text, text, 1, 0, text, text, 0)
    assert server.hash(row) == history_hash(*row)


def test_the_hashed_bytes_are_length_and_text_of_every_field_after_the_previous_hash() -> None:
    row = Row(b"\x01" * 32, "ä", ID, 12, "queued", "running", "claim", "worker:w", 1, 3, None, "{}", 99)
    text = "2:126:queued7:running5:claim8:worker:w1:11:3-2:{}2:99"
    assert history_hash(*row) == hashlib.sha256(b"\x01" * 32 + text.encode()).digest()


def test_the_first_row_begins_with_tenant_and_job() -> None:
    row = Row(None, "ä", ID, 1, None, "queued", "enqueue", "user:a", 1, 0, None, None, 99)
    text = f"2:ä36:{ID}1:1-6:queued7:enqueue6:user:a1:11:0--2:99"
    assert history_hash(*row) == hashlib.sha256(text.encode()).digest()


@given(rows, st.data())
def test_another_value_of_any_field_is_another_hash(row: Row, data: st.DataObject) -> None:
    """Whose history it is stands in the first row, and in the later ones by the hash before."""
    other = data.draw(rows)
    whose = {"tenant", "job_id"} if row.previous is not None else set[str]()
    field = data.draw(st.sampled_from([name for name in Row._fields if name not in whose]))
    changed = row._replace(**{field: getattr(other, field)})
    assert (history_hash(*changed) == history_hash(*row)) is (changed == row)


@given(texts, texts)
def test_text_cannot_shift_from_one_field_into_the_next(reason: str, metadata: str) -> None:
    """Each field starts with its length, so no two ways of cutting the same text are equal."""
    row = Row(None, "t", ID, 1, None, "queued", "enqueue", "user:a", 1, 0, None, None, 0)
    joined, apart = row._replace(reason=reason + metadata, metadata=""), row._replace(reason=reason, metadata=metadata)
    assert (history_hash(*joined) == history_hash(*apart)) is (metadata == "")
    assert history_hash(*row._replace(reason="")) != history_hash(*row)
    assert history_hash(*row._replace(reason="-")) != history_hash(*row._replace(metadata="-"))
