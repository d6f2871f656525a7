"""Trees that grow while they are cancelled, and jobs that are redriven while they are deleted, by several processes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from interlock.domain.decide import CancelJob
from interlock.domain.job import Enqueued, Filter, Job, NewJob, Rejected
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.domain.operations import PruneCommand, Redrive
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.engine.operations import Operations
from interlock.storage.contract import Store
from interlock.wire import LIMITS, new_id
from tests.process.actions import TENANT
from tests.process.conftest import FAST, Checker
from tests.process.test_races import no_one_failed, rounds
from tests.support.workers import ProcessGroup

ACTOR = "user:x"
WHO = local(TENANT)


async def grow(store: Store, root: str, requests: int) -> Counter[str]:
    """Add children under the root and under earlier children, while any of them can be a parent."""
    family, reported = [root], Counter[str]()
    for _ in range(requests):
        job = NewJob(new_id(), "t", parent_id=random.choice(family))
        (answer,) = await store.enqueue(TENANT, [job])
        if isinstance(answer, Enqueued):
            family.append(job.id)
            reported["born"] += 1
        else:
            reported[answer.error.code] += 1
    return reported


async def claim_some(store: Store, worker: str) -> int:
    return sum([len(await store.claim(TENANT, ClaimFilter(worker, limit=3))) for _ in range(6)])


async def cascade(store: Store, root: str, force: bool = False, looks: int = 0) -> int:
    """Cancel a tree after this many reads of its root, so that it has time to grow."""
    for _ in range(looks):
        await store.get(TENANT, [root])
    return (await Operations(store, LIMITS).cancel_tree(WHO, root, force=force)).descendants


async def redrive(store: Store, ids: Sequence[str]) -> list[str]:
    """The new jobs, and the codes of refusals."""
    answers = await store.redrive(TENANT, [Redrive(id, new_id(), ACTOR, once=True) for id in ids])
    return [answer.error.code if isinstance(answer, Rejected) else answer.id for answer in answers]


async def prune_all(store: Store, steps: int) -> int:
    deleted = after = 0
    for _ in range(steps):
        done = await store.prune(TENANT, PruneCommand(new_id(), ACTOR, 1 << 60, after, 10))
        deleted, after = deleted + done.deleted, 0 if done.at_end else done.last_seq
    return deleted


async def descendants(checker: Checker, root: str) -> list[Job]:
    below: list[Job] = []
    level = [root]
    while level:
        children = [job for id in level for job in await checker.store.find(TENANT, Filter(parent_id=id, limit=1000))]
        below += children
        level = [job.id for job in children]
    return below


async def test_no_child_escapes_a_cascade(checker: Checker) -> None:
    reported = Counter[str]()
    with ProcessGroup(checker.place, 5) as workers:
        for round in rounds(25, 6):
            (root,) = await checker.add()
            requests = 10 + round % 20
            await grow(checker.store, root, 6)
            answers = workers.race(
                (grow, root, requests), (grow, root, requests), (claim_some, "w"),
                (cascade, root, False, round), (cascade, root, bool(round % 2), 2 * round),
            )  # fmt: skip
            no_one_failed(answers)
            reported += answers[0] + answers[1]
            for job in [*(await checker.jobs([root])), *await descendants(checker, root)]:
                assert job.status in TERMINAL or job.cancel_requested_at is not None, (round, job.id, job.status)
    await checker.check()
    print(f"told: {dict(reported)}")
    assert reported["born"]
    assert reported["parent_ended"]


async def test_a_redriven_child_does_not_escape_either(checker: Checker) -> None:
    with ProcessGroup(checker.place, 3) as workers:
        for _ in rounds(40, 10):
            (root,) = await checker.add()
            children = await checker.add(4, parent_id=root)
            await checker.store.carry_out(TENANT, [CancelJob(id, ACTOR) for id in children])
            answers = workers.race((redrive, children), (cascade, root), (redrive, children[::-1]))
            no_one_failed(answers)
            assert answers[0] == answers[2][::-1]
            for job in await checker.jobs(answers[0]):
                assert job.parent_id in (root, None)
                assert job.status is (Status.CANCELLED if job.parent_id else Status.QUEUED)
            await checker.store.carry_out(TENANT, [CancelJob(id, ACTOR) for id in answers[0]])
    await checker.check()


async def test_a_job_is_redriven_completely_or_not_at_all(checker: Checker) -> None:
    reported = Counter[str]()
    with ProcessGroup(checker.place, 4) as workers:
        for _ in rounds(15, 4):
            ids = await checker.add(20 if FAST else 40, type="old")
            await checker.store.carry_out(TENANT, [CancelJob(id, ACTOR) for id in ids])
            halves = [ids[: len(ids) // 2], ids[len(ids) // 2 :]]
            answers = workers.race(
                (prune_all, 8), (redrive, halves[0]), (redrive, halves[1][::-1]), (prune_all, 8)
            )  # fmt: skip
            no_one_failed(answers)
            for id, answer in zip([*halves[0], *halves[1][::-1]], answers[1] + answers[2], strict=True):
                if answer == "not_found":
                    reported["gone"] += 1
                    continue
                (job,) = await checker.jobs([answer])
                assert (job.redrive_of, job.status) == (id, Status.QUEUED)
                reported["redriven"] += 1
            await checker.store.carry_out(
                TENANT, [CancelJob(id, ACTOR) for id in answers[1] + answers[2] if len(id) == 36]
            )
            while await prune_all(checker.store, 8):
                pass
    await checker.check()
    print(f"told: {dict(reported)}")
