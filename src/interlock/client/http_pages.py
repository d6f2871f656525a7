"""Lists over HTTP: a cursor is opaque, so where each page ended is remembered for whoever goes on by a number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Raw

from interlock.client.http_calls import Query
from interlock.client.http_values import PageShape, read

LONGEST_PAGE: Final = 200
MOST_REMEMBERED: Final = 1000

Fetch = Callable[[str, Query], Awaitable[bytes]]


class Pages:
    """Reads lists of one server page by page."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._ends: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def page(self, path: str, query: Query, cursor: str | None = None) -> PageShape:
        more = [] if cursor is None else [("cursor", cursor)]
        return read(await self._fetch(path, [*query, *more]), PageShape)

    async def all(self, path: str) -> list[Raw]:
        """Every item, in the order of the list."""
        found: list[Raw] = []
        cursor: str | None = None
        while True:
            page = await self.page(path, [("limit", str(LONGEST_PAGE))], cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    def remember(self, what: str, number: int, cursor: str | None) -> None:
        """That the list goes on with this cursor after the item with this number."""
        if cursor is not None:
            self._ends[what, number] = cursor
            self._ends.move_to_end((what, number))
            if len(self._ends) > MOST_REMEMBERED:
                self._ends.popitem(last=False)

    def cursor(self, what: str, number: int) -> str | None:
        return self._ends.get((what, number))
