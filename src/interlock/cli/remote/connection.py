"""The line to one server: calls, and lists read page by page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from msgspec import Raw

from interlock.client.http.client import HttpClient
from interlock.client.http.decode import PageShape, read
from interlock.client.http.encode import encoded
from interlock.client.http.transport import Calls, HttpRequest, HttpResponse, Query

T = TypeVar("T")
RETRY_SECONDS = 10.0  # a person is waiting at the terminal
MAX_PAGE_SIZE: Final = 200
ALL: Final = 1 << 30
JSON: Final = {"content-type": "application/json"}


class ServerConnection:
    """One server and a credential for it."""

    def __init__(self, server: str, token: str | None) -> None:
        self.client = HttpClient(server, token=token, retry_seconds=RETRY_SECONDS)
        self.calls = Calls(server, token=token, retry_seconds=RETRY_SECONDS)

    async def get(self, path: str, query: Query = (), **about: object) -> HttpResponse:
        return await self.calls.send(HttpRequest(method="GET", path=path, query=query, about=about))

    async def post(
        self, path: str, body: Mapping[str, object], *, repeatable: bool = True, **about: object
    ) -> HttpResponse:
        return await self._send("POST", path, body, repeatable, about)

    async def put(self, path: str, body: Mapping[str, object]) -> HttpResponse:
        return await self._send("PUT", path, body, True, {})

    async def patch(self, path: str, body: Mapping[str, object], **about: object) -> HttpResponse:
        return await self._send("PATCH", path, body, True, about)

    async def delete(self, path: str, **about: object) -> None:
        await self.calls.send(HttpRequest(method="DELETE", path=path, about=about))

    async def listed(
        self,
        path: str,
        item: Callable[[Raw], T],
        *,
        limit: int,
        query: Query = (),
        beyond: Callable[[T], bool] | None = None,
        **about: object,
    ) -> list[T]:
        """Return up to `limit` items, only those beyond a position if one is given."""
        found: list[T] = []
        cursor: str | None = None
        while True:
            most = limit if beyond is None and limit != ALL else MAX_PAGE_SIZE
            more: list[tuple[str, str | int | float | bool | None]] = [("limit", str(most))]
            if cursor is not None:
                more.append(("cursor", cursor))
            page = read((await self.get(path, [*query, *more], **about)).body, PageShape)
            items = [item(one) for one in page.items]
            found += items if beyond is None else filter(beyond, items)
            cursor = page.next_cursor
            if len(found) >= limit or cursor is None:
                return found[:limit]

    async def close(self) -> None:
        await self.client.close()
        await self.calls.close()

    async def _send(
        self, method: str, path: str, body: Mapping[str, object], repeatable: bool, about: Mapping[str, Any]
    ) -> HttpResponse:
        return await self.calls.send(
            HttpRequest(method=method, path=path, body=encoded(body), headers=JSON, repeatable=repeatable, about=about)
        )
