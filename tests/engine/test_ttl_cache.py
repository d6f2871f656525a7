"""The small, short memory behind authentication."""

from __future__ import annotations

from interlock.engine.ttl_cache import TtlCache


def test_an_entry_expires_at_its_time() -> None:
    recent: TtlCache[str, int] = TtlCache(10)
    recent.put("a", 1, until=5.0)
    assert recent.get("a", 4.9) == 1
    assert recent.get("a", 5.0) is None
    assert len(recent) == 0


def test_a_full_cache_evicts_the_oldest_entry() -> None:
    recent: TtlCache[int, int] = TtlCache(3)
    for i in range(3):
        recent.put(i, i, until=10.0)
    recent.put(0, 7, until=10.0)
    recent.put(3, 3, until=10.0)
    assert [recent.get(i, 0.0) for i in range(4)] == [7, None, 2, 3]
    assert len(recent) == 3


def test_matching_entries_are_removed_and_the_rest_stay() -> None:
    recent: TtlCache[int, int] = TtlCache(10)
    for i in range(6):
        recent.put(i, i % 2, until=10.0)
    recent.forget(lambda value: value == 1)
    assert [recent.get(i, 0.0) for i in range(6)] == [0, None, 0, None, 0, None]
