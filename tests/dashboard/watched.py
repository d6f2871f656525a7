"""A tab of a real browser that says what it was shown, and notes whatever ran or was fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from playwright.async_api import Page, Request

from tests.dashboard.conftest import Board

# All elements, names of attributes, addresses that leave us, and how often each text stands whole in a text or a value.
_LOOK: Final = """(doc, texts) => {
  const madeOf = new Set(), leadsOut = [], parts = [];
  const walker = doc.createTreeWalker(doc);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (node.nodeType === Node.TEXT_NODE) parts.push(node.data);
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

    shown: list[int]
    made_of: set[str] = field(default_factory=set)
    leads_out: list[str] = field(default_factory=list)

    def add(self, page: dict[str, Any]) -> None:
        self.made_of |= set(page["madeOf"])
        self.leads_out += page["leadsOut"]
        self.shown = [all + more for all, more in zip(self.shown, page["shown"], strict=False)]


class Watched:
    """The tab; `texts` is what it looks for."""

    def __init__(self, page: Page, board: Board, texts: Sequence[str], *, has_script: bool) -> None:
        self._page, self._url, self._texts = page, board.url, list(texts)
        self.has_script, self.faults = has_script, list[str]()
        page.on("request", self._note_request)
        page.on("dialog", lambda dialog: self.faults.append(dialog.message))
        page.on("console", lambda message: self.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def seen(self) -> Seen:
        return Seen([0] * len(self._texts))

    async def visit(self, path: str, seen: Seen, *, again: bool) -> str | None:
        """Load a page as anybody does, `again` also by its own script; the answer is the page after it."""
        await self._page.goto(self._url + path)
        await self._look(seen)
        next = self._page.locator("nav.pages a[rel=next]")
        after = await next.get_attribute("href") if await next.count() else None
        if again and await self._page.locator("main[data-live]").count():
            await self._page.evaluate(_REFRESH)
            await self._look(seen)
        return after

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

    def _note_request(self, request: Request) -> None:
        page = request.is_navigation_request() and request.frame == self._page.main_frame
        own = page or request.resource_type == "fetch" or request.url.startswith(f"{self._url}/static/")
        if not own or not request.url.startswith(f"{self._url}/"):
            self.faults.append(f"{request.resource_type} {request.url}")
