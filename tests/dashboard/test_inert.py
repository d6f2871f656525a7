"""Text from jobs stays text: a corpus in every field, looked at on every page by a real browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files

import httpx2
import pytest
from playwright.async_api import Browser

from interlock.dashboard.pages import agents, approvals, audit, jobs, overview, tokens, webhooks, workers
from interlock.engine.reads import LONGEST_PAGE
from tests.dashboard.conftest import Board, patient
from tests.dashboard.corpus import CORPUS, VECTORS
from tests.dashboard.hostile import NAMES, PLAIN, Ask, Planter
from tests.dashboard.watched import Seen, Watched

LISTS = (
    "/", "/jobs?status=running", "/approvals?status=all", "/queues", "/agents", "/workers", "/tokens", "/webhooks",
    "/audit?after=2000-01-01",
)  # fmt: skip
LIGHT = ("/jobs?status=running", "/workers", "/tokens", "/webhooks")  # painted without script as well
LIVE = "/approvals?status=all"
PAGES_OF_A_BUNDLE = 100
OURS = re.compile(
    r'<script src="/static/[^>]*></script>|<link rel="stylesheet"[^>]*>|<nav aria-label="Pages">.*?</nav>', re.DOTALL
)
# What nobody sees still runs and fetches, and to paint it would cost the most.
UNPAINTED = '<!doctype html><link rel="icon" href="/static/icon.svg"><body hidden>'


class Shape(HTMLParser):
    """What a template is made of: elements and names of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.made_of: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.made_of |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


@cache
def usual() -> set[str]:
    """What our own templates are made of, whatever they show."""
    shape = Shape()
    for template in (files("interlock.dashboard") / "templates").iterdir():
        shape.feed(re.sub(r"\{[%{#].*?[%}#]\}", "", template.read_text(), flags=re.DOTALL))
    return shape.made_of | {"main data-live", "body hidden"}  # one is put in by a child, the other by a bundle


def texts_of(engine: str) -> tuple[str, ...]:
    """All of them, or some: engines keep text byte for byte, as the contract suite holds them to, and pages know none."""
    return (*(NAMES if engine == "sqlite" else NAMES[::20]), PLAIN)


@pytest.fixture
def tenant() -> str:
    return NAMES[0]


@pytest.fixture
def _long_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages show as much as one look can get, so that few looks see every string."""
    for module in (jobs, approvals, workers, tokens, webhooks):
        monkeypatch.setattr(module, "AT_ONCE", LONGEST_PAGE - 1)
    monkeypatch.setattr(agents, "AT_ONCE", LONGEST_PAGE - 1)
    monkeypatch.setattr(agents, "FEW", LONGEST_PAGE)
    monkeypatch.setattr(overview, "FEW", LONGEST_PAGE)
    monkeypatch.setattr(overview, "MOST_WORKERS", LONGEST_PAGE)
    monkeypatch.setattr(audit, "ROWS_SHOWN", 10_000)


def is_inert(seen: Seen, what: str) -> None:
    """It is made of what our templates are, and leads nowhere else."""
    assert (seen.made_of - usual(), seen.leads_out) == (set(), []), what


def shows_all(seen: Seen, what: str) -> None:
    """Each string stood whole wherever a plain one did."""
    *hostile, plain = seen.shown
    assert plain > 0, what
    assert [i for i, count in enumerate(hostile) if count < plain] == [], (what, plain)


async def bundles(http: httpx2.AsyncClient, asks: Sequence[Ask]) -> list[str]:
    """Pages as few documents: many in a row, each whole but for our own files and the way to other pages."""
    answers = [await (http.get(path) if form is None else http.post(path, data=form)) for path, form in asks]
    texts = [OURS.sub("", answer.text) for answer in answers]
    parts = (texts[at : at + PAGES_OF_A_BUNDLE] for at in range(0, len(texts), PAGES_OF_A_BUNDLE))
    return [UNPAINTED + "".join(part) for part in parts]


async def tab_of(chromium: Browser, board: Board, texts: Sequence[str], *, script: bool = True) -> Watched:
    page = await (await patient(chromium, java_script_enabled=script)).new_page()
    await page.add_init_script("window.pwned = () => console.error('pwned')")
    return Watched(page, board, texts, has_script=script)


def test_every_string_of_the_corpus_is_in_a_name() -> None:
    assert len(set(CORPUS)) == 500
    assert "".join(NAMES) == "".join(CORPUS)


@pytest.mark.usefixtures("_long_pages")
async def test_no_page_is_made_of_anything_else_when_the_text_is_hostile(
    board: Board, tenant: str, engine: str, chromium: Browser
) -> None:
    texts = texts_of(engine)
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=60) as http:
        form_token = (await http.get("/tokens")).text.partition('name="form_token" value="')[2].partition('"')[0]
        planted = await Planter(board.engine, tenant, form_token).plant(texts)
        every = {"every page": [ask for asks in planted.asks.values() for ask in asks]}
        kinds = planted.asks if engine == "sqlite" else every  # where they are few they fit into one look
        documents = {kind: await bundles(http, asks) for kind, asks in kinds.items()}
        some: list[Ask] = [ask for asks in planted.asks.values() for ask in asks[-5:]]
        rest: list[Ask] = [(path, None) for path in LISTS if path not in LIGHT]
        sample = await bundles(http, some + rest) if engine == "sqlite" else []

    tab = await tab_of(chromium, board, texts)
    for first in LISTS:
        await looked_through(tab, first)
    for kind, pages in documents.items():
        seen = tab.seen()
        for page in pages:
            await tab.read(page, seen)
        is_inert(seen, kind)
        shows_all(seen, kind)
    assert tab.faults == []

    if engine == "sqlite":
        without_script = await tab_of(chromium, board, texts, script=False)
        for first in LIGHT:
            await looked_through(without_script, first)
        for page in sample:
            await without_script.read(page, seen := tab.seen())
            is_inert(seen, "pages of every kind")
        assert without_script.faults == []


async def looked_through(tab: Watched, first: str) -> None:
    """A list from its first page to its last."""
    seen = tab.seen()
    path: str | None = first
    while path is not None:
        path = await tab.visit(path, seen, again=first == LIVE and tab.has_script)
    is_inert(seen, first)
    shows_all(seen, first)


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_the_browser_would_have_noticed(board: Board, chromium: Browser) -> None:
    """Where a string does become markup the page is made of something else; else the test above would prove nothing."""
    tab = await tab_of(chromium, board, [PLAIN])
    inside = [vector for vector in VECTORS if vector.startswith("<")]
    unnoticed = []
    for vector in inside:
        seen = tab.seen()
        await tab.read(f"{UNPAINTED}<p>{vector}", seen)
        if not seen.made_of - usual() and not seen.leads_out:
            unnoticed.append(vector)
    assert unnoticed == []
    assert "pwned" in tab.faults
    assert any("evil.example" in fault for fault in tab.faults)
