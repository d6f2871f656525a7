"""Pagination over HTTP. Cursors are opaque, so page ends are remembered for callers that resume from a number."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from msgspec import Raw

from interlock.client.http.decode import PageShape, read
from interlock.client.http.transport import Query

T = TypeVar("T")
MAX_PAGE_SIZE: Final = 200
MAX_LISTS: Final = 200
MAX_ENDS: Final = 1000

Fetch = Callable[[str, Query], Awaitable[bytes]]


class Pages:
    """Reads lists of one server page by page."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._ends: OrderedDict[str, list[tuple[int, str]]] = OrderedDict()

    async def all(self, path: str) -> list[Raw]:
        """Every item, in the order of the list."""
        found: list[Raw] = []
        cursor: str | None = None
        while True:
            page = await self._page(path, [("limit", str(MAX_PAGE_SIZE))], cursor)
            found += page.items
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def after(
        self,
        path: str,
        query: Query,
        place: int | None,
        *,
        limit: int,
        item: Callable[[Raw], T],
        at: Callable[[T], int],
    ) -> list[T]:
        """Return up to `limit` items after a position; positions rise along the list, and None reads from the start.

        Reading begins at the last known page end before the position.
        """
        what = f"{path}?{query}"
        cursor = None if place is None else self._known(what, place)
        found: list[T] = []
        while True:
            page = await self._page(path, [*query, ("limit", str(limit))], cursor)
            items = [item(one) for one in page.items]
            cursor = page.next_cursor
            if items and cursor is not None:
                self._remember(what, at(items[-1]), cursor)
            found += [one for one in items if place is None or at(one) > place]
            if len(found) >= limit or cursor is None:
                return found[:limit]

    async def _page(self, path: str, query: Query, cursor: str | None) -> PageShape:
        more = [] if cursor is None else [("cursor", cursor)]
        return read(await self._fetch(path, [*query, *more]), PageShape)

    def _known(self, what: str, place: int) -> str | None:
        ends = self._ends.get(what, [])
        i = bisect_right(ends, place, key=lambda end: end[0])
        return ends[i - 1][1] if i else None

    def _remember(self, what: str, place: int, cursor: str) -> None:
        ends = self._ends.setdefault(what, [])
        self._ends.move_to_end(what)
        i = bisect_right(ends, place, key=lambda end: end[0])
        if not i or ends[i - 1][0] != place:
            ends.insert(i, (place, cursor))
        if len(ends) > MAX_ENDS:
            del ends[0]
        while len(self._ends) > MAX_LISTS:
            self._ends.popitem(last=False)
