from interlock.domain.job import NewJob
from interlock.domain.policy import ClaimAsk
from interlock.storage.contract import Store


async def test_smoke(store: Store) -> None:
    await store.enqueue("t", [NewJob("0193a1b2-c3d4-7e5f-8a9b-000000000001", "x")])
    jobs = await store.claim("t", ClaimAsk("w"))
    assert len(jobs) == 1
    assert (await store.verify()).first_bad is None
