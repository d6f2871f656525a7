"""An app over shards: its tasks, workers and queues work as on one database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import interlock
from interlock.client.local import LocalClient
from interlock.domain.job import Filter
from interlock.errors import Invalid, TenantMoved
from interlock.storage.shards.tenant_move import Mover
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.shards import SHARDS, resident


async def jobs_in(address: str, tenant: str) -> int:
    """How many jobs of a tenant a database has."""
    connection = await asyncpg.connect(address)
    try:
        return int(await connection.fetchval("select count(*) from interlock.job where tenant = $1", tenant))
    finally:
        await connection.close()


def has_run(job: interlock.JobHandle[Any]) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await job.refresh()).status == "succeeded"

    return look


@pytest.mark.parametrize("shard", SHARDS)
async def test_jobs_are_stored_and_run_on_the_shard_of_their_tenant(
    addresses: dict[str, str], owners: dict[str, str], shard: str
) -> None:
    tenant = resident(shard, f"app on {shard}")
    async with interlock.App(shards=addresses, tenant=tenant) as app:

        @app.task
        async def double(ctx: interlock.Context, number: int) -> int:
            return int(await ctx.step("twice", lambda: number * 2))

        jobs = await double.enqueue_many([{"number": number} for number in range(5)])
        await interlock.Worker(app).run(drain=True)
        assert [await job.result(timeout=RETRY_SECONDS) for job in jobs] == [0, 2, 4, 6, 8]
    assert {name: await jobs_in(owners[name], tenant) for name in SHARDS} == {
        name: 5 if name == shard else 0 for name in SHARDS
    }


async def test_a_worker_continues_on_the_new_shard_of_its_tenant(
    addresses: dict[str, str], owners: dict[str, str], tmp_path: Path
) -> None:
    tenant = resident("a", "app that moves")
    async with interlock.App(shards=addresses, tenant=tenant, artifacts=str(tmp_path / "files")) as app:
        started, go_on = asyncio.Event(), asyncio.Event()

        @app.task
        async def patient(ctx: interlock.Context) -> str:
            started.set()
            await go_on.wait()
            return await ctx.attach("moved.txt", b"on the way")

        @app.task
        async def quick() -> str:
            return "done"

        worker = interlock.Worker(app, lease=600)
        working = asyncio.create_task(worker.run())
        try:
            held = await patient.enqueue()
            await asyncio.wait_for(started.wait(), RETRY_SECONDS)
            assert (await Mover(owners).move(tenant, "b"))[1:3] == ("a", "b")
            later = await quick.enqueue()
            await eventually(has_run(later))
            go_on.set()
            artifact_id = await held.result(timeout=RETRY_SECONDS)
            assert (await held.refresh()).attempt == 1
            client = await app._client()
            assert isinstance(client, LocalClient)
            artifacts = client.engine.artifacts
            assert await artifacts.home(tenant, artifact_id) == held.id
            content = (await artifacts.read(tenant, held.id, artifact_id)).chunks
            assert b"".join([piece async for piece in content]) == b"on the way"
        finally:
            worker.stop()
            await working
    assert await jobs_in(owners["b"], tenant) == 2
    assert await jobs_in(owners["a"], tenant) == 0


def test_synchronous_programs_and_queues_use_shards_too(addresses: dict[str, str]) -> None:
    app = interlock.App(shards=addresses, tenant=resident("b", "blocking"))
    try:
        queue = interlock.Queue("mail", app)
        queue.push_sync({"to": "ada"})
        with queue.consume(wait=60) as item:
            assert item is not None
            assert item.payload == {"to": "ada"}
        assert queue.size_sync() == 0
    finally:
        app.close_sync()


async def test_an_app_and_a_queue_without_a_url_use_the_settings(
    addresses: dict[str, str], owners: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = resident("b", "settings")
    lines = [f'tenant = "{tenant}"', "[shards]", *(f'{name} = "{url}"' for name, url in addresses.items())]
    (tmp_path / "interlock.toml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    async with interlock.App() as app:

        @app.task
        async def nothing() -> None: ...

        await nothing.enqueue()
    queue = interlock.Queue("mail")
    try:
        await queue.push(1)
    finally:
        await queue.close()
    assert await jobs_in(owners["b"], tenant) == 2


async def test_without_settings_an_app_uses_a_local_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with interlock.App():
        assert (tmp_path / "interlock.db").exists()


async def test_a_job_joins_a_transaction_on_its_own_shard_and_on_no_other(addresses: dict[str, str]) -> None:
    tenant = resident("b", "joining")
    async with interlock.App(shards=addresses, tenant=tenant) as app:

        @app.task
        async def nothing() -> None: ...

        await nothing.enqueue()
        for shard in SHARDS:
            connection = await asyncpg.connect(addresses[shard])
            try:
                async with connection.transaction():
                    with pytest.raises(TenantMoved) if shard == "a" else contextlib.nullcontext():
                        await nothing.within(connection).enqueue()
            finally:
                await connection.close()
        assert len(await (await app._client()).jobs.list(Filter())) == 2


class ByType:
    """Sends one type of jobs elsewhere."""

    def queue_shards(self, tenant: str, type: str | None) -> list[str]:
        return ["a", "b"] if type is None else [self.current_shard(tenant, type)]

    def current_shard(self, tenant: str, type: str | None) -> str:
        return "b" if type == "apart" else "a"


class Nowhere(ByType):
    """Names a shard that does not exist."""

    def shards(self) -> list[str]:
        return ["a", "z"]


async def test_an_app_accepts_a_custom_supplier(addresses: dict[str, str], owners: dict[str, str]) -> None:
    tenant = "split by type"
    async with interlock.App(shards=addresses, tenant=tenant, shard_supplier=ByType()) as app:
        ran = []

        @app.task
        async def apart(number: int) -> None:
            ran.append(number)

        @app.task
        async def together(number: int) -> None:
            ran.append(number)

        for number in range(3):
            await apart.enqueue(number)
        await together.enqueue(3)
        await interlock.Worker(app).run(drain=True)
        assert sorted(ran) == [0, 1, 2, 3]
    assert {name: await jobs_in(owners[name], tenant) for name in SHARDS} == {"a": 1, "b": 3}
    with pytest.raises(Invalid, match="shard 'z', which the settings do not name"):
        async with interlock.App(shards=addresses, shard_supplier=Nowhere()):
            pass


URL = "postgresql://somebody@nowhere/jobs"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"url": URL, "shards": {"a": URL}}, "at a URL or on shards, not both"),
        ({"shards": {}}, "at least one shard"),
        ({"shards": {"a": "sqlite:///jobs.db"}}, "must be a database of PostgreSQL"),
        ({"shards": {"a": URL, "b": URL}}, "the same database URL"),
        ({"shards": {"a": URL}, "token": "secret"}, "a token goes with the URL of a server"),
        ({"url": "https://queue.example", "shards": {"a": URL}}, "a server knows its databases"),
        ({"url": "https://queue.example", "artifacts": "files"}, "a server knows its databases"),
        ({"url": URL, "shard_supplier": "by-type"}, "a shard supplier chooses among shards"),
    ],
)
def test_incompatible_options_are_rejected_immediately(given: dict[str, Any], why: str) -> None:
    with pytest.raises(Invalid, match=why):
        interlock.App(**given)


@pytest.mark.parametrize("url", ["jobs.db", "", "sqlite://jobs.db", "mysql://somebody:secret@nowhere/jobs"])
def test_an_unsupported_url_is_rejected_immediately_without_its_password(url: str) -> None:
    with pytest.raises(
        Invalid, match="is not a URL: use sqlite:///PATH or postgresql://USER@HOST/NAME, or http://"
    ) as refused:
        interlock.App(url)
    assert "secret" not in str(refused.value)


PACKAGE = """
class ByName:
    def __init__(self, shards):
        self.first, self.last = shards[0], shards[-1]

    async def queue_shards(self, tenant, type):
        return [self.first, self.last]

    async def current_shard(self, tenant, type):
        return self.last


def broken(shards):
    raise RuntimeError("no map today")
"""


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that offers suppliers, as if it were installed."""
    about = tmp_path / "maps-1.dist-info"
    about.mkdir()
    (tmp_path / "maps_of_ours.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: maps\nVersion: 1\n")
    (about / "entry_points.txt").write_text(
        "[interlock.shards]\nby-name = maps_of_ours:ByName\nbroken = maps_of_ours:broken\n"
        "nothing = builtins:str\nmissing = maps_of_ours:Missing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("offered")
async def test_a_package_may_provide_a_supplier(addresses: dict[str, str], owners: dict[str, str]) -> None:
    tenant = resident("a", "mapped by a package")
    async with interlock.App(shards=addresses, tenant=tenant, shard_supplier="by-name") as app:

        @app.task
        async def nothing() -> None: ...

        job = await nothing.enqueue()
        await interlock.Worker(app).run(drain=True)
        assert await has_run(job)()
    assert (await jobs_in(owners["a"], tenant), await jobs_in(owners["b"], tenant)) == (0, 1)


@pytest.mark.usefixtures("offered")
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("by-moon", "no package offers a shard supplier named 'by-moon'"),
        ("broken", "'broken' cannot be made: RuntimeError.*no map today"),
        ("missing", "'missing' cannot be made: AttributeError"),
        ("nothing", "'nothing' has no method queue_shards"),
    ],
)
async def test_an_unavailable_supplier_is_rejected_at_startup(addresses: dict[str, str], name: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        async with interlock.App(shards=addresses, shard_supplier=name):
            pass
