"""The shard number in an ID, the shard of a new tenant, and sequence numbers that never collide."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.shards import MAX_SHARDS, first_shard, next_number, shard_of_id
from interlock.wire import new_id

numbers = st.integers(0, MAX_SHARDS - 1)


@given(numbers)
def test_an_id_names_the_shard_of_its_creation_and_stays_a_uuid_of_version_7(shard: int) -> None:
    id = new_id(shard)
    assert shard_of_id(id) == shard
    assert (UUID(id).version, UUID(id).variant) == (7, "specified in RFC 4122")
    assert str(UUID(id)) == id


def test_with_one_shard_ids_contain_number_0() -> None:
    assert {shard_of_id(new_id()) for _ in range(100)} == {0}


def test_new_tenants_are_spread_evenly_and_always_to_the_same_shard() -> None:
    shards = ["a", "b", "c"]
    homes = {f"tenant {i}": first_shard(f"tenant {i}", shards) for i in range(3000)}
    assert all(800 < count < 1200 for count in Counter(homes.values()).values())
    assert homes == {tenant: first_shard(tenant, shards) for tenant in homes}


@given(st.integers(0, 2**60), numbers)
def test_the_next_number_of_a_shard_is_greater_and_its_own(after: int, shard: int) -> None:
    number = next_number(after, shard)
    assert after < number <= after + MAX_SHARDS
    assert number % MAX_SHARDS == shard
