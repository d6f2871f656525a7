"""Requests, responses and the table of pages."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from interlock import wire
from interlock.client.local import LocalClient
from interlock.dashboard.navigation import READ_ROLES
from interlock.domain.principal import Principal
from interlock.engine.sign_in import Flow, Provider
from interlock.errors import FieldError, Invalid, NotFound, TooLarge

T = TypeVar("T")
MAX_FIELDS: Final = 2_000
MAX_INTEGER: Final = 2**63 - 1
DAY: Final = 86_400.0
MAX_BACK_LENGTH: Final = 1_500  # characters; beyond that, "back" leads to the first page
FIRST: Final = "first"
TRANSIENT: Final = frozenset({"notice", "n", "before", "back"})  # parameters that do not select records


class Paging(NamedTuple):
    """The queries of the previous and the next page; None where there is no such page."""

    back: str | None
    next: str | None


class Fields:
    """Decoded query or form fields; empty values count as absent."""

    def __init__(self, encoded: str = "") -> None:
        try:
            pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="replace")
        except ValueError:
            raise Invalid(f"form has too many fields: the limit is {MAX_FIELDS}") from None
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if "\x00" in value:
                raise Invalid("field contains a NUL character: remove it", pointer="/")
            self._values.setdefault(name, []).append(value)

    def raw(self, name: str) -> str | None:
        """Return the last value as it was sent, even if it is empty."""
        return self._values[name][-1] if name in self._values else None

    def one(self, name: str) -> str | None:
        return (self.raw(name) or "").strip() or None

    def all(self, name: str) -> list[str]:
        return [value.strip() for value in self._values.get(name, ()) if value.strip()]

    def number(self, name: str) -> float | None:
        value = self.one(name)
        try:
            number = None if value is None else float(value)
        except ValueError:
            number = math.nan
        if number is not None and not math.isfinite(number):
            raise Invalid("expected a number", pointer=f"/{name}")
        return number

    def integer(self, name: str) -> int | None:
        value = self.one(name)
        try:
            number = None if value is None else int(value[:20])
        except ValueError:
            number = MAX_INTEGER + 1
        if number is not None and abs(number) > MAX_INTEGER:
            raise Invalid("expected a whole number", pointer=f"/{name}")
        return number

    def timestamp(self, name: str) -> int | None:
        """Return a time as sent by a datetime-local input, in UTC unless it carries an offset."""
        value = self.one(name)
        try:
            at = None if value is None else datetime.fromisoformat(value)
        except ValueError:
            raise Invalid("expected a time such as 2026-01-31T12:00", pointer=f"/{name}") from None
        if at is not None and at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return wire.instant(at, name)

    def with_filter(self, name: str, value: str) -> str:
        """Return the query of the first page with this filter added; only tags may repeat."""
        others = self.all(name) if name == "tag" else []
        rest = self.encoded(without=(name, *TRANSIENT))
        added = urlencode([(name, one) for one in (*others, value) if one != value] + [(name, value)])
        return f"{rest}&{added}" if rest else added

    def paging(self, *names: str, next: Mapping[str, object] | None) -> Paging:
        """Return links from the page at the position `names`; a query carries the positions it came from."""
        here = urlencode([(name, value) for name in names if (value := self.one(name)) is not None])
        visited = self.all("back")
        while sum(map(len, visited)) > MAX_BACK_LENGTH:
            del visited[0]
        following = back = None
        if next is not None:
            following = self._page_query(names, next.items(), [*visited, here or FIRST])
        if here:
            last = Fields(visited[-1] if visited else FIRST)
            position = [(name, value) for name in names if (value := last.one(name)) is not None]
            back = self._page_query(names, position, visited[:-1])
        return Paging(back, following)

    def page(self, found: Sequence[T], size: int, **position: Callable[[T], object]) -> tuple[Sequence[T], Paging]:
        """Return the first `size` items of a list that was read one item further, and the links around them.

        `position` gets from an item the fields that continue the list after it.
        """
        last = found[size - 1] if len(found) > size else None
        next = None if last is None else {name: value(last) for name, value in position.items()}
        return found[:size], self.paging(*position, next=next)

    def amounts(self, name: str, form: str = "UNIT=AMOUNT") -> dict[str, float]:
        """Return amounts by name, as `tokens=40000`, separated by commas or line breaks."""
        found: dict[str, float] = {}
        for one in (self.one(name) or "").replace(",", "\n").splitlines():
            unit, _, amount = (part.strip() for part in one.rpartition("="))
            try:
                value = float(amount) if unit else math.nan
            except ValueError:
                value = math.nan
            if one.strip() and not math.isfinite(value):
                raise Invalid(f"“{one.strip()}” is not an amount: expected {form}", pointer=f"/{name}")
            if unit in found:
                raise Invalid(f"“{unit}” is named twice", pointer=f"/{name}")
            if unit:
                found[unit] = value
        return found

    def job_id(self, name: str) -> str | None:
        value = self.one(name)
        try:
            return None if value is None else wire.job_id(value)
        except NotFound:
            raise Invalid("expected a job id", pointer=f"/{name}") from None

    @property
    def here(self) -> str:
        """Return the query without the notice of the last action."""
        return self.encoded(without=("notice", "n"))

    def _page_query(self, names: Sequence[str], position: Iterable[tuple[str, object]], visited: Sequence[str]) -> str:
        rest = self.encoded(without=(*names, "back", "notice", "n"))
        moved = urlencode([*position, *(("back", one) for one in visited)])
        return "&".join(part for part in (rest, moved) if part)

    def encoded(self, *, without: Sequence[str] = (), **changed: object) -> str:
        """Return the query with some fields removed or replaced."""
        kept = [(n, v) for n, values in self._values.items() if n not in {*without, *changed} for v in values if v]
        return urlencode([*kept, *((name, str(value)) for name, value in changed.items() if value is not None)])


class RejectedForm(NamedTuple):
    """A form that was rejected: what was submitted, and its errors by field name; `""` is the form itself."""

    action: str
    fields: Fields
    errors: Mapping[str, str]


@dataclass(frozen=True)
class SessionChange:
    """A change to the session of the browser: the current one ends, and the one with a credential or person begins.

    A sign-in that starts at the identity provider changes no session yet.
    """

    credential: str | None = None
    person: Principal | None = None
    starting: Flow | None = None


@dataclass(frozen=True)
class PageRequest:
    """One authorized request for a page."""

    client: LocalClient
    who: Principal
    now: int
    path: Mapping[str, str]
    query: Fields
    form: Fields
    provider: Provider | None = None
    flow: Flow | None = None  # the sign-in that this browser has started

    @property
    def tenant(self) -> str:
        return self.who.tenant

    @property
    def identity_provider(self) -> Provider:
        """The identity provider; without one its pages do not exist."""
        if self.provider is None:
            raise NotFound("/sign-in", resource="page")
        return self.provider

    async def authenticate(self, credential: str) -> Principal:
        return await self.client.engine.tokens.authenticate(credential)


@dataclass(frozen=True)
class View:
    """A template and its variables."""

    template: str
    context: Mapping[str, Any]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    change: SessionChange | None = None


@dataclass(frozen=True)
class PageResponse:
    """A response without a template: a redirect or a file."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None
    change: SessionChange | None = None
    cookies: tuple[str, ...] = ()


Choice = TypeVar("Choice", bound=StrEnum)
Handler = Callable[[PageRequest], Awaitable[View | PageResponse]]


@dataclass(frozen=True)
class Page:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[str]  # one of these is enough
    needs_sign_in: bool = True
    checks_secret: bool = False
    form_page: Handler | None = None  # renders the page with this form, to show the form's errors
    field_names: Mapping[str, str] = field(
        default_factory=dict
    )  # form fields by request member, where the names differ


class Pages(list[Page]):
    """The pages of one module, in the order of their definition."""

    def get(self, path: str, *, roles: Iterable[str] = READ_ROLES, open: bool = False) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.append(Page("GET", path, handler, frozenset(roles), not open))
            return handler

        return register

    def post(
        self,
        path: str,
        *,
        roles: Sequence[str],
        open: bool = False,
        checks_secret: bool = False,
        form_page: Handler | None = None,
        field_names: Mapping[str, str] | None = None,
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            page = Page("POST", path, handler, frozenset(roles), not open, checks_secret, form_page, field_names or {})
            self.append(page)
            return handler

        return register


def field_errors(error: Invalid | TooLarge, names: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the messages of an error by form field; `names` maps request members to fields."""
    found: dict[str, str] = {}
    for fault in error.faults if isinstance(error, Invalid) else [FieldError(f"/{error.what}", str(error))]:
        member = fault.pointer.lstrip("/").partition("/")[0]
        name = (names or {}).get(member, member)
        found[name] = f"{found[name]}\n{fault.message}" if name in found else fault.message
    return found


def one_of(choices: type[Choice], value: str, name: str) -> Choice:
    """Return the choice with this value."""
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choices)
        raise Invalid(f"unknown {name} “{value}”: expected one of {known}", pointer=f"/{name}") from None


def show(template: str, *, status: int = 200, **context: Any) -> View:
    return View(template, context, status)


def redirect(to: str, *, notice: str | None = None, n: int | None = None) -> PageResponse:
    """Redirect after an action; `notice` is the key of the message that the next page shows."""
    more = urlencode({name: value for name, value in (("notice", notice), ("n", n)) if value is not None})
    mark = "&" if "?" in to else "?"
    return PageResponse(303, headers={"location": f"{to}{mark}{more}" if more else to})


def download(name: str, *, body: bytes = b"", stream: AsyncIterator[bytes] | None = None) -> PageResponse:
    """Send a file that browsers save and never render."""
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    return PageResponse(200, body, headers, stream)
