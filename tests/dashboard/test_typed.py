"""Input in an address or a form is shown again as text, on every page that accepts any."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib.resources import files
from typing import Final
from urllib.parse import quote

import httpx2
from playwright.async_api import Browser

from interlock.dashboard.app import pages
from interlock.dashboard.http import Page
from interlock.dashboard.sign_in_throttle import WINDOW_SECONDS
from tests.dashboard.conftest import Board
from tests.dashboard.hostile import NAMES
from tests.dashboard.scene import Scene
from tests.dashboard.test_poison import NAMES as KNOWN_FIELDS
from tests.dashboard.test_walk import DOWNLOADED
from tests.dashboard.watched import bundles, is_inert, tab_of
from tests.support.eventually import RETRY_SECONDS

NAMES_BATCH_SIZE: Final = 45  # what the longest head of a request has room for, spelled as addresses spell it
READS: Final = re.compile(r"""\.(?:one|all|raw|number|integer|timestamp|amounts)\(["'](\w+)["']\)""")
# The values of the other fields of a form, so that each field is checked once.
SENSIBLE: Final = {
    "role": "read", "event": "job.failed", "url": "https://hooks.example/x", "decision": "deny", "action": "cancel",
    "scope": "filter", "priority": "1", "max_concurrency": "1",
}  # fmt: skip


def fields_of(page: Page) -> list[str]:
    """The names that the module of a page asks for, as its source spells them."""
    return sorted({*READS.findall(inspect.getsource(sys.modules[page.handler.__module__])), "notice", "n"})


def tomes() -> list[str]:
    """The corpus in few texts."""
    return ["".join(NAMES[at : at + NAMES_BATCH_SIZE]) for at in range(0, len(NAMES), NAMES_BATCH_SIZE)]


def typed(stage: Scene, page: Page) -> Iterator[tuple[str, dict[str, str]]]:
    """A page with the corpus in each field, one by one, and in its path; a form has room for all of it at once."""
    path = stage.fill(page.path)
    for tome in tomes() if page.method == "GET" else ["".join(NAMES)]:
        for name in fields_of(page):
            yield path, SENSIBLE | {name: tome}
    for tome in tomes() if "{" in page.path else []:
        yield re.sub(r"\{\w+\}", quote(tome, safe=""), page.path, count=1), SENSIBLE


def test_every_field_that_a_page_reads_is_known() -> None:
    templates = (files("interlock.dashboard") / "templates").iterdir()
    read = {name for template in templates for name in READS.findall(template.read_text())}
    for page in pages():
        read |= set(fields_of(page))
    assert read - {*KNOWN_FIELDS, "form_token"} == set()


async def test_typed_text_is_returned_as_text(board: Board, stage: Scene, chromium: Browser) -> None:
    texts = tomes()
    encoded: set[str] = set()
    async with httpx2.AsyncClient(
        base_url=board.url, trust_env=False, timeout=RETRY_SECONDS, follow_redirects=True
    ) as http:
        token = (await http.get("/queues")).text.partition('name="form_token" value="')[2].partition('"')[0]
        for page in (one for one in pages() if one.path not in DOWNLOADED):
            for path, given in typed(stage, page):
                board.ticks.now += WINDOW_SECONDS  # so that the sign-in throttle does not apply
                get = page.method == "GET"
                answer = await (
                    http.get(path, params=given) if get else http.post(path, data={**given, "form_token": token})
                )
                assert answer.status_code < 500, (page.path, given)
                encoded.add(answer.text)

    tab = await tab_of(chromium, board, texts)
    seen = tab.seen()
    for document in bundles(sorted(encoded)):
        await tab.read(document, seen)
    is_inert(seen, "what was typed")
    assert 0 not in seen.encoded
    assert tab.faults == []
