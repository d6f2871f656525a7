"""A tab of a real browser that reports what it shows, and records everything that ran or was fetched."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

from playwright.async_api import Browser, ConsoleMessage, Page, Request, Route

from tests.dashboard.conftest import Board, patient

PAGES_OF_A_BUNDLE: Final = 100
OURS: Final = re.compile(
    r'<script src="/static/[^>]*></script>|<link rel="stylesheet"[^>]*>|<nav aria-label="Pages">.*?</nav>', re.DOTALL
)
# What the Markdown of an approval request may be made of.
MARKDOWN: Final = frozenset(
    {"em", "strong", "s", "code", "code class", "pre", "p", "br", "hr", "blockquote", "ul", "ol", "ol start", "li"}
    | {"table", "thead", "tbody", "tr", "th", "td", "h3", "h4", "h5", "h6"}
)
# Hidden content still runs and fetches, and painting it would cost the most.
UNPAINTED: Final = '<!doctype html><link rel="icon" href="/static/icon.svg"><body hidden>'

# All elements, names of attributes, addresses that leave us, and how often each text stands whole in a text or a value.
# Prompts are not counted: they are Markdown, so the marks in them are not shown. `test_approval_text.py` has their tests.
_LOOK: Final = """(doc, texts) => {
  const madeOf = new Set(), leadsOut = [], parts = [];
  const walker = doc.createTreeWalker(doc);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) {
      if (!node.parentElement?.closest('.prompt, a[href^="/approvals/"], a[href^="/approvals/"] + .faint')) parts.push(node.data);
    }
    else if (node.nodeType === Node.COMMENT_NODE) madeOf.add("a comment");
    else if (node.nodeType === Node.ELEMENT_NODE) {
      const tag = node.localName;
      madeOf.add(tag === "script" && node.text ? "a script of its own" : tag);
      for (const { name, value } of node.attributes) {
        madeOf.add(`${tag} ${name.toLowerCase()}`);
        parts.push(value);
        const leads = ["href", "src", "action", "formaction"].includes(name);
        if (leads && value && !/^[/#](?![/\\\\])/.test(value)) leadsOut.push(`${tag} ${name}=${value}`);
      }
    }
  }
  const all = parts.join("\\0");
  return { madeOf: [...madeOf], leadsOut, shown: texts.map((text) => all.split(text).length - 1) };
}"""

# Everything that a page shows comes once more, as it does when it is new: by our script, which gets it from the server.
_REFRESH: Final = """async () => {
  main.replaceChildren();
  await refresh();
}"""


@dataclass
class Seen:
    """What some pages were made of, which addresses led out of them, and how often each text was shown."""

    encoded: list[int]
    made_of: set[str] = field(default_factory=set)
    leads_out: list[str] = field(default_factory=list)

    def add(self, page: dict[str, Any]) -> None:
        self.made_of |= set(page["madeOf"])
        self.leads_out += page["leadsOut"]
        self.encoded = [all + more for all, more in zip(self.encoded, page["shown"], strict=False)]


class Watched:
    """The tab; `texts` is what it looks for."""

    def __init__(self, page: Page, board: Board, texts: Sequence[str], *, has_script: bool) -> None:
        self._page, self._url, self._texts = page, board.url, list(texts)
        self.has_script, self.faults = has_script, list[str]()
        page.on("request", self._note_request)
        page.on("dialog", lambda dialog: self.faults.append(dialog.message))
        page.on("console", self._note_text)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def seen(self) -> Seen:
        return Seen([0] * len(self._texts))

    async def visit(self, path: str, seen: Seen, *, again: bool) -> str | None:
        """Load a page as a user does, `again` also by its own script; return the page after it."""
        await self._page.goto(self._url + path)
        await self._look(seen)
        next = self._page.locator("nav.pages a[rel=next]")
        after = await next.get_attribute("href") if await next.count() else None
        if again and await self._page.locator("main[data-live]").count():
            await self._page.evaluate(_REFRESH)
            await self._look(seen)
        return after

    async def look_at(self, path: str, form: Mapping[str, str] | None, seen: Seen) -> None:
        """Load one page as the server serves it, with its policy; one that answers a form is sent that form."""
        if form is not None:
            body, kind = urlencode(form), {"content-type": "application/x-www-form-urlencoded"}

            async def send(route: Route) -> None:
                await route.continue_(method="POST", headers=route.request.headers | kind, post_data=body)

            await self._page.route("**/*", send, times=1)
        answer = await self._page.goto(self._url + path)
        assert answer is not None
        assert "default-src 'none'" in answer.headers["content-security-policy"], path
        await self._look(seen)

    async def read(self, document: str, seen: Seen) -> None:
        """Load a document as if we had served it, but without the policy that would stop what runs."""
        await self._page.route(
            "**/unguarded", lambda route: route.fulfill(body=document, content_type="text/html; charset=utf-8")
        )
        await self._page.goto(f"{self._url}/unguarded")
        await self._page.unroute("**/unguarded")
        await self._look(seen)

    async def _look(self, seen: Seen) -> None:
        seen.add(await self._page.evaluate(f"(texts) => ({_LOOK})(document, texts)", self._texts))

    def _note_text(self, message: ConsoleMessage) -> None:
        """All that a browser complains of, save that a page was a refusal: some are."""
        refused = (
            "the server responded with a status of 4" in message.text and message.location["url"] == self._page.url
        )
        if message.type == "error" and not refused:
            self.faults.append(message.text)

    def _note_request(self, request: Request) -> None:
        page = request.is_navigation_request() and request.frame == self._page.main_frame
        own = page or request.resource_type == "fetch" or request.url.startswith(f"{self._url}/static/")
        if not own or not request.url.startswith(f"{self._url}/"):
            self.faults.append(f"{request.resource_type} {request.url}")


async def tab_of(chromium: Browser, board: Board, texts: Sequence[str], *, script: bool = True) -> Watched:
    page = await (await patient(chromium, java_script_enabled=script)).new_page()
    await page.add_init_script("window.pwned = () => console.error('pwned')")
    return Watched(page, board, texts, has_script=script)


def bundles(texts: Sequence[str]) -> list[str]:
    """Pages as few documents: many in a row, each whole but for our own files and the way to other pages."""
    parts = (texts[at : at + PAGES_OF_A_BUNDLE] for at in range(0, len(texts), PAGES_OF_A_BUNDLE))
    return [UNPAINTED + "".join(OURS.sub("", text) for text in part) for part in parts]


class Shape(HTMLParser):
    """What a template is made of: elements and names of attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.made_of: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.made_of |= {tag, *(f"{tag} {name}" for name, _ in attrs)}


@cache
def usual() -> set[str]:
    """The elements of our templates, for any content."""
    shape = Shape()
    for template in (files("interlock.dashboard") / "templates").iterdir():
        shape.feed(re.sub(r"\{[%{#].*?[%}#]\}", "", template.read_text(), flags=re.DOTALL))
    described = {
        f"{tag} {name}"
        for tag in ("input", "select", "textarea", "fieldset")
        for name in ("aria-describedby", "aria-invalid", "data-initial")
    }
    by_script = {"button aria-disabled", "button disabled"}
    return shape.made_of | described | by_script | MARKDOWN | {"main data-live", "body hidden"}


def is_inert(seen: Seen, what: str) -> None:
    """It is made of what our templates are, and leads nowhere else."""
    unusual = seen.made_of - usual()
    assert (unusual, seen.leads_out) == (set(), []), (what, unusual, seen.leads_out)


def shows_all(seen: Seen, what: str) -> None:
    """Each string appeared completely where a plain one did."""
    *hostile, plain = seen.encoded
    assert plain > 0, what
    rarer = [i for i, count in enumerate(hostile) if count < plain]
    assert rarer == [], (what, plain, rarer)
