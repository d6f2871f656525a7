"""A cluster of three changes its leader, or falls apart, under load: nothing acknowledged is lost, clients continue."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from interlock.domain.job import Enqueued, NewJob, Rejected
from interlock.errors import Unavailable
from interlock.storage.postgres.store import PostgresStore
from interlock.wire import new_id
from tests.cluster.deployment import TENANT, Deployment, plant
from tests.cluster.direct_workers import DirectWorkers, hands
from tests.cluster.freezing import frozen
from tests.cluster.proxies import Proxies, lines
from tests.process.conftest import Checker
from tests.support.cluster import Cluster, Node, cluster
from tests.support.eventually import RETRY_SECONDS
from tests.support.stores import APP_LOGIN, TEMPLATE, make_template
from tests.support.workers import Place

Property = Callable[[str, object], None]


async def test_a_cluster_loses_nothing_when_its_leader_is_switched_over_cut_off_frozen_or_killed(
    tmp_path: Path, record_property: Property
) -> None:
    # One test, since starting a cluster takes longer than all that is done to it.
    with lines() as wires, cluster(wires.way) as nodes:
        await make_template(nodes)
        dsn = nodes.dsn(TEMPLATE, user=APP_LOGIN)
        place = Place("postgres", dsn)
        with plant(tmp_path, dsn) as works:
            far = nodes.dsn(TEMPLATE, user=APP_LOGIN, way=lambda node: wires.way(far_from(node), node.port))
            server = works.add_server("server", far)
            works.add_worker("straight", dsn)
            works.add_worker("far", far)
            works.add_worker("over-http", server)
            await works.until_ready(server)
            works.produce(dsn)
            works.produce(server)
            async with hands(place, 3) as direct:
                await all_make_progress(works, direct)
                line = await switched_over(nodes, works, direct)
                record_property("switchover", line)
                await out_of_sight(nodes, wires, works, direct)
                line = await cut_off(nodes, wires, works, direct)
                record_property("cut off", line)
                line = await hung(nodes, works, direct)
                record_property("hung", line)
                line, dead = await killed(nodes, works, direct)
                record_property("failover", line)
                await asyncio.to_thread(nodes.revive, dead)
                await all_make_progress(works, direct)
            await works.wind_up()
            await check_final_state(nodes, works, direct, place)


async def all_make_progress(works: Deployment, direct: DirectWorkers) -> None:
    await direct.all_make_progress()
    await works.all_make_progress()


async def switched_over(nodes: Cluster, works: Deployment, direct: DirectWorkers) -> str:
    began = time.monotonic()
    old, new = await asyncio.to_thread(nodes.switch_over)
    await all_make_progress(works, direct)
    line = (
        f"switched over from {old.name} to {new.name}: no call was answered for {direct.longest_silence(began):.1f} s"
    )
    print(line)
    return line


def far_from(node: Node) -> str:
    """The name of the lines by which those who are far reach a node."""
    return f"the way to {node.name}"


async def out_of_sight(nodes: Cluster, wires: Proxies, works: Deployment, direct: DirectWorkers) -> None:
    """A server and a worker lose the leader without any notice; they find the next leader by themselves."""
    await asyncio.to_thread(nodes.until_whole)
    old = await asyncio.to_thread(lambda: nodes.leader)
    wires.drop_all(far_from(old))
    await direct.all_make_progress()  # those who still see it
    await asyncio.to_thread(nodes.switch_over)
    await all_make_progress(works, direct)
    wires.restore(far_from(old))


async def cut_off(nodes: Cluster, wires: Proxies, works: Deployment, direct: DirectWorkers) -> str:
    """The leader is cut off from etcd and its standbys, while all clients still reach it."""
    await asyncio.to_thread(nodes.until_whole)
    old = await asyncio.to_thread(lambda: nodes.leader)
    began = time.monotonic()
    wires.drop_all(old.name)
    new = await asyncio.to_thread(nodes.wait_for_another, old)
    await all_make_progress(works, direct)
    drop_all = direct.longest_silence(began)
    wires.restore(old.name)
    line = f"{old.name} cut off under load, {new.name} took over: no call was answered for {drop_all:.1f} s"
    print(line)
    return line


async def hung(nodes: Cluster, works: Deployment, direct: DirectWorkers) -> str:
    """The leader stands still, another takes over, and the old one comes back and still believes that it leads."""
    await asyncio.to_thread(nodes.until_whole)
    old = await asyncio.to_thread(lambda: nodes.leader)
    began = time.monotonic()
    with frozen(old) as node:
        new = await asyncio.to_thread(nodes.wait_for_another, old)
        await all_make_progress(works, direct)
        drop_all = direct.longest_silence(began)
        node.wake_postgres()
        await a_newcomer_finds_the_leader(nodes, old)
    line = f"{old.name} hung under load, {new.name} took over: no call was answered for {drop_all:.1f} s"
    print(line)
    return line


async def a_newcomer_finds_the_leader(nodes: Cluster, old: Node) -> None:
    """A client first reaches a node that was cut off, and accepts writes but cannot commit any: it tries the others."""

    async def enqueued(first: Node | None) -> Enqueued | Rejected:
        store = await PostgresStore.open(nodes.dsn(TEMPLATE, user=APP_LOGIN, first=first), size=2)
        try:
            while True:
                with suppress(Unavailable):
                    new = NewJob(new_id(), "rare", idempotency_key="newcomer")
                    return (await store.enqueue("newcomers", [new]))[0]
        finally:
            await store.close()

    answers: list[Enqueued | Rejected] = []
    for first in (old, None):
        async with asyncio.timeout(RETRY_SECONDS):
            while len(answers) < (1 if first is old else 2):
                with suppress(Unavailable):
                    answers.append(await enqueued(first))
    first_job, same_job = answers
    assert isinstance(first_job, Enqueued), first_job
    assert isinstance(same_job, Enqueued), same_job
    assert (same_job.id, same_job.replayed) == (first_job.id, True)


async def killed(nodes: Cluster, works: Deployment, direct: DirectWorkers) -> tuple[str, Node]:
    await asyncio.to_thread(nodes.until_whole)
    old = await asyncio.to_thread(lambda: nodes.leader)
    began = time.monotonic()
    await asyncio.to_thread(nodes.kill, old)
    new = await asyncio.to_thread(nodes.wait_for_another, old)
    await all_make_progress(works, direct)
    drop_all = direct.longest_silence(began)
    line = f"{old.name} killed under load, {new.name} took over: no call was answered for {drop_all:.1f} s"
    print(line)
    return line, old


async def check_final_state(nodes: Cluster, works: Deployment, direct: DirectWorkers, place: Place) -> None:
    store = await PostgresStore.open(place.address)
    try:
        jobs = await works.compare(store)
        checker = Checker(place, store, nodes.dsn(TEMPLATE))
        await direct.book.compare(checker)
        await direct.book.finish_remaining(checker)
        verdict = await store.audit.verify()
        assert verdict.first_bad is None
    finally:
        await store.close()
    print(f"{jobs} jobs by workers, {len(direct.book.enqueued)} by hand, {dict(direct.book.unknown)} repeated")
    command = [sys.executable, "-m", "interlock", "audit", "verify", "--database", place.address, "--tenant", TENANT]
    reported = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert reported.returncode == 0, reported.stdout + reported.stderr
