"""The table of pages, what a page is asked, and what it may answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from interlock import wire
from interlock.dashboard.ways import LOOKS
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.errors import Invalid

MOST_FIELDS: Final = 2_000
LARGEST: Final = 2**63 - 1
DAY: Final = 86_400.0
LONGEST_WAY: Final = 1_500  # characters; whoever has come further goes back to the first page
FIRST: Final = "first"
PASSING: Final = frozenset(
    {"said", "n", "before", "back"}
)  # what an address says of one look, and not of what is looked for


class Turns(NamedTuple):
    """The queries of the pages before and after the one that is looked at; None where there is none."""

    back: str | None
    on: str | None


class Fields:
    """What a query or a form says, each name with all its values; empty ones count as not said."""

    def __init__(self, encoded: str = "") -> None:
        try:
            pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="replace")
        except ValueError:
            raise Invalid(f"a form has at most {MOST_FIELDS} fields") from None
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            if "\x00" in value:
                raise Invalid("a field has a character that no text here has", pointer="/")
            self._values.setdefault(name, []).append(value)

    def raw(self, name: str) -> str | None:
        """The last value as it was sent, even if it is empty."""
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
            raise Invalid(f"{name} must be a number", pointer=f"/{name}")
        return number

    def whole(self, name: str) -> int | None:
        value = self.one(name)
        try:
            number = None if value is None else int(value[:20])
        except ValueError:
            number = LARGEST + 1
        if number is not None and abs(number) > LARGEST:
            raise Invalid(f"{name} must be a whole number", pointer=f"/{name}")
        return number

    def instant(self, name: str) -> int | None:
        """A time as a browser's own field sends it, which is without an offset: UTC, as all times here."""
        value = self.one(name)
        try:
            at = None if value is None else datetime.fromisoformat(value)
        except ValueError:
            raise Invalid(f"{name} is not a time such as 2026-01-31T12:00", pointer=f"/{name}") from None
        if at is not None and at.tzinfo is None:
            at = at.replace(tzinfo=UTC)
        return wire.instant(at, name)

    def narrowed(self, name: str, value: str) -> str:
        """The same query from its first page on, with this value too; beside a tag there may be others."""
        others = self.all(name) if name == "tag" else []
        rest = self.encoded(without=(name, *PASSING))
        said = urlencode([(name, one) for one in (*others, value) if one != value] + [(name, value)])
        return f"{rest}&{said}" if rest else said

    def turns(self, *names: str, next: Mapping[str, object] | None) -> Turns:
        """The ways on from a page that these names place, and back: an address remembers how it was come by."""
        here = urlencode([(name, value) for name in names if (value := self.one(name)) is not None])
        came_by = self.all("back")
        while sum(map(len, came_by)) > LONGEST_WAY:
            del came_by[0]
        on = back = None
        if next is not None:
            on = self._turned(names, next.items(), [*came_by, here or FIRST])
        if here:
            last = Fields(came_by[-1] if came_by else FIRST)
            place = [(name, value) for name in names if (value := last.one(name)) is not None]
            back = self._turned(names, place, came_by[:-1])
        return Turns(back, on)

    def _turned(self, names: Sequence[str], place: Iterable[tuple[str, object]], came_by: Sequence[str]) -> str:
        rest = self.encoded(without=(*names, "back", "said", "n"))
        turned = urlencode([*place, *(("back", one) for one in came_by)])
        return "&".join(part for part in (rest, turned) if part)

    def encoded(self, *, without: Sequence[str] = (), **changed: object) -> str:
        """The same query with some of it left out or said otherwise."""
        kept = [(n, v) for n, values in self._values.items() if n not in {*without, *changed} for v in values if v]
        return urlencode([*kept, *((name, str(value)) for name, value in changed.items() if value is not None)])


@dataclass(frozen=True)
class Ask:
    """One request for a page, by somebody who may have it."""

    engine: Engine
    who: Principal
    now: int
    path: Mapping[str, str]
    query: Fields
    form: Fields

    @property
    def tenant(self) -> str:
        return self.who.tenant


@dataclass(frozen=True)
class View:
    """A template and what it shows."""

    template: str
    shown: Mapping[str, Any]
    status: int = 200


@dataclass(frozen=True)
class Reply:
    """An answer that is no page: a redirect, a file."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    stream: AsyncIterator[bytes] | None = None


Choice = TypeVar("Choice", bound=StrEnum)
Handler = Callable[[Ask], Awaitable[View | Reply]]


@dataclass(frozen=True)
class Page:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    roles: frozenset[str]  # one of these is enough
    needs_sign_in: bool = True
    takes_a_secret: bool = False


class Pages(list[Page]):
    """The pages of one module, in the order they are written."""

    def get(self, path: str, *, roles: Iterable[str] = LOOKS, open: bool = False) -> Callable[[Handler], Handler]:
        return self._add("GET", path, roles, open)

    def post(
        self, path: str, *, roles: Sequence[str], open: bool = False, takes_a_secret: bool = False
    ) -> Callable[[Handler], Handler]:
        return self._add("POST", path, roles, open, takes_a_secret)

    def _add(
        self, method: str, path: str, roles: Iterable[str], open: bool, takes_a_secret: bool = False
    ) -> Callable[[Handler], Handler]:
        def register(handler: Handler) -> Handler:
            self.append(Page(method, path, handler, frozenset(roles), not open, takes_a_secret))
            return handler

        return register


def one_of(choices: type[Choice], value: str, name: str) -> Choice:
    """The choice that a text names; whoever names another is told which there are."""
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(choices)
        raise Invalid(f"there is no {name} “{value}”; there are {known}", pointer=f"/{name}") from None


def show(template: str, *, status: int = 200, **shown: Any) -> View:
    return View(template, shown, status)


def go(to: str, *, said: str | None = None, n: int | None = None) -> Reply:
    """Send a browser on after something was done; `said` names the sentence that is shown there."""
    more = urlencode({name: value for name, value in (("said", said), ("n", n)) if value is not None})
    mark = "&" if "?" in to else "?"
    return Reply(303, headers={"location": f"{to}{mark}{more}" if more else to})


def download(name: str, *, body: bytes = b"", stream: AsyncIterator[bytes] | None = None) -> Reply:
    """Bytes that a browser keeps and never shows: whatever they are, they run nowhere."""
    headers = {
        "content-type": "application/octet-stream",
        "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        "content-security-policy": "default-src 'none'; sandbox; frame-ancestors 'none'",
    }
    return Reply(200, body, headers, stream)
