"""What the audit finds in a chain, row by row, even if an attacker has computed matching hashes."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.audit import history_hash
from interlock.storage.history_chain import head, verify

ID, OTHER = "0193a1b2-c3d4-7e5f-8a9b-000000000001", "0193a1b2-c3d4-7e5f-8a9b-000000000002"

Move = tuple[int, str | None, str]
LIFE: list[Move] = [(1, None, "queued"), (2, "queued", "running"), (3, "running", "succeeded")]


def chain(
    moves: list[Move], *, id: str = ID, version: int | None = 3, status: str | None = "succeeded"
) -> list[tuple[Any, ...]]:
    """Rows with valid hashes, and the columns of the job."""
    rows: list[tuple[Any, ...]] = []
    previous = None
    for number, origin, target in moves:
        fields = ("t", id, number, origin, target, "verb", "user:a", 1, 0, None, None, 99)
        previous = history_hash(previous, *fields)
        rows.append((*fields, previous, version, status))
    return [(*row, previous) for row in rows]


def test_a_valid_chain_is_counted() -> None:
    assert verify([]) == (0, 0, None)
    assert verify(chain(LIFE)) == (1, 3, None)
    assert verify(chain(LIFE) + chain(LIFE, id=OTHER)) == (2, 6, None)


@pytest.mark.parametrize(
    ("moves", "version", "status", "bad"),
    [
        ([(1, None, "queued"), (3, "queued", "running")], 3, "running", "version 3: a version is missing"),
        ([(2, None, "queued")], 2, "queued", "version 2: a version is missing"),
        ([(1, "retry", "queued")], 1, "queued", "version 1: it does not start from the status"),
        ([(1, None, "queued"), (2, "retry", "running")], 2, "running", "version 2: it does not start from the status"),
        (LIFE[:2], 3, "succeeded", "version 2: the job has version 3, succeeded, but its history ends in running"),
        (LIFE, 3, "failed", "version 3: the job has version 3, failed, but its history ends in succeeded"),
        (LIFE, 2, "succeeded", "version 3: the job has version 2"),
        (LIFE, None, None, "version 1: the job is gone"),
    ],
)  # fmt: skip
def test_an_invalid_chain_is_found(moves: list[Move], version: int | None, status: str | None, bad: str) -> None:
    rows = chain(moves, version=version, status=status)
    for around in (rows, chain(LIFE, id=OTHER) + rows, rows + chain(LIFE, id=OTHER)):
        verdict = verify(around)
        assert verdict.first_bad is not None
        assert f"t {ID} {bad}" in verdict.first_bad
        assert verdict.rows == len(around)


def test_an_invalid_hash_is_found_and_the_rest_is_still_counted() -> None:
    rows = chain(LIFE)
    rows[1] = (*rows[1][:6], "user:mallory", *rows[1][7:])
    verdict = verify(rows)
    assert verdict.rows == 3
    assert verdict.first_bad == f"t {ID} version 2: the hash does not match the row and the previous one"


def test_the_head_covers_tenant_id_and_hash_of_every_job() -> None:
    ends = [("a", ID, b"1" * 32), ("b", OTHER, b"2" * 32)]
    seen = {
        head(ends), head(ends[:1]), head([]), head([("b", ID, b"1" * 32), ends[1]]), head([("a", OTHER, b"1" * 32), ends[1]]),
        head([("a", ID, b"3" * 32), ends[1]]),
    }  # fmt: skip
    assert len(seen) == 6
    assert head(ends) == head(list(ends))
