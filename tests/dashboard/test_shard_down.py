"""The dashboard over two shards, one of which is unavailable: a page names it, and recovers by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from interlock.storage.shards.factory import open_sharded_store
from tests.dashboard.conftest import Ticks, a_server, serving
from tests.support.eventually import RETRY_SECONDS, eventually
from tests.support.postgres import Postgres
from tests.support.shards import copied_shards, resident, wire_to
from tests.support.stores import APP_LOGIN, ManualClock


@pytest.fixture
def addresses(postgres: Postgres) -> Iterator[dict[str, str]]:
    with copied_shards(postgres) as databases:
        yield {name: postgres.dsn(database, user=APP_LOGIN) for name, database in databases.items()}


async def test_a_page_of_a_tenant_on_an_unavailable_shard_reports_it_and_other_pages_name_the_shard(
    addresses: dict[str, str], clock: ManualClock, tmp_path: Path
) -> None:
    async with wire_to(addresses["b"]) as (wire, near):
        router = await open_sharded_store({**addresses, "b": near}, size=2, clock=clock)
        there, here = resident("b", "there"), resident("a", "here")
        async with (
            serving(router, clock, tmp_path, auth=False, tenant=there) as cut,
            a_server(cut.engine, clock, Ticks(), auth=False, tenant=here) as whole,
            httpx2.AsyncClient(trust_env=False, timeout=RETRY_SECONDS) as browser,
        ):

            async def look(url: str, *given: str) -> bool:
                """Whether the page is complete and contains this text."""
                page = await browser.get(url)
                return page.status_code == 200 and all(words in page.text for words in given)

            assert await look(f"{cut.url}/jobs?type=letter")
            wire.cut()
            await eventually(lambda: look(whole.url, "Unreachable: shard b", "the other shards continue"))
            page = await browser.get(f"{cut.url}/jobs?type=letter")
            assert (page.status_code, page.headers["retry-after"], page.headers["refresh"]) == (503, "5", "5")
            for words in ("<h1>Unavailable</h1>", '<a href="/jobs?type=letter">Try again</a>'):
                assert words in page.text
            wire.restore()
            await eventually(lambda: look(f"{cut.url}/jobs?type=letter"))
