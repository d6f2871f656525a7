"""Protocol adapters: what another protocol brings (routes, credentials, bodies, errors, settings, webhooks)."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self
from urllib.parse import parse_qsl

import msgspec

from interlock.api import auth, body
from interlock.api.endpoint import Endpoint, refusal
from interlock.api.headers import Headers
from interlock.api.routes import Receive, Request, Response, Route
from interlock.api.service import Service, Trail
from interlock.domain.principal import Principal
from interlock.errors import Error, Invalid, Malformed

if TYPE_CHECKING:
    from interlock.engine.jwks import Fetch
    from interlock.engine.webhook_messages import WebhookFormat

MAX_LEASE_SECONDS: Final = 30 * 86_400.0  # those servers had no limit, and their workers do not expect one
NO_SETTINGS: Final[Mapping[str, Any]] = {}
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# Numbers stay text, so that their size does not matter here.
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


class Adapter:
    """One protocol beside the native one, on the same jobs. It translates; every rule is in the engine.

    A package registers a subclass in the entry point group `interlock.faces`. The defaults are those of the native
    API: a subclass with nothing but `routes` is served with the native credentials and errors.
    """

    prefixes: ClassVar[tuple[str, ...]] = ()  # below them also the errors of unknown paths have this format
    settings: ClassVar[Mapping[str, Callable[[object], Any]]] = NO_SETTINGS  # the parsers of settings NAME_…

    def __init__(self, settings: Mapping[str, Any] = NO_SETTINGS, fetch: Fetch | None = None) -> None:
        """Read the settings of this adapter that are set; `fetch` reads the keys of an issuer."""

    async def close(self) -> None:
        """Close what this adapter has opened."""

    @classmethod
    def missing(cls) -> str | None:
        """Return what must be installed before this adapter can be served."""
        return None

    @classmethod
    def webhook_format(cls, settings: Mapping[str, Any]) -> WebhookFormat | None:
        """Return the format of webhooks that were created through this adapter; None for the standard one."""
        return None

    def routes(self) -> Sequence[Route]:
        """Return the routes of this protocol."""
        return ()

    def endpoints(self, service: Service) -> list[Endpoint]:
        """Return the paths of this protocol."""
        by_path: dict[str, list[Route]] = defaultdict(list)
        for route in self.routes():
            by_path[route.path].append(route)
        return [AdapterEndpoint(service, path, of_path, self) for path, of_path in by_path.items()]

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        """Return the caller, if they may use this route."""
        who = await auth.authenticate(service, headers)
        auth.check_role(who, route)
        return who

    def limit(self, service: Service, route: Route, who: Principal) -> None:
        """Reject a caller over the rate limit."""
        if service.rates is not None:
            service.rates.take(f"{who.tenant} {who.actor}")

    def unreadable(self, error: Error, route: Route) -> Exception:
        """Return the error for a body or query that cannot be decoded."""
        return error

    def translate(self, error: Exception, status: int, path: str) -> tuple[int, Mapping[str, Any]] | None:
        """Return the status and document for an error of the engine; None for the problem document."""
        return None

    def refusal(self, error: Exception, trail: Trail, path: str) -> Response:
        """Return the error response of this protocol, also where no route of it was reached."""
        if isinstance(error, AdapterError):
            trail.code = "refused"
            return Response(error.status, msgspec.json.encode(error.document), headers=error.headers)
        plain = refusal(error, trail)  # it also logs defects
        if (translated := self.translate(error, plain.status, path)) is None:
            return plain
        return Response(translated[0], msgspec.json.encode(translated[1]), headers=plain.headers)


class AdapterError(Exception):
    """A rejected request, with the error document of a protocol adapter."""

    def __init__(self, status: int, document: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.document, self.headers = status, document, dict(headers or {})
        super().__init__(str(document))


class Lenient(Request, frozen=True, kw_only=True, forbid_unknown_fields=False, rename="camel"):
    """Base of request bodies and queries of a protocol adapter. Ignores unknown fields, as the original servers did."""

    keeps_blank: ClassVar[frozenset[str]] = frozenset()  # query parameters for which a blank value counts

    @classmethod
    def read(cls, raw: bytes, *, limit: int, sanitizes: bool) -> tuple[Self, bool]:
        """Decode a body; the second value is True if invalid Unicode in it was replaced."""
        return body.decode(raw, cls, limit=limit, sanitizes=sanitizes)


class Batch(Lenient, frozen=True, kw_only=True):
    """The base of batch bodies: an object with a list of items, or the list alone.

    Items are `msgspec.Raw` and are checked one by one, so that an unreadable item does not reject the others.
    """

    items_field: ClassVar[str]
    is_bare: bool = False  # set by read(), never by the body

    @classmethod
    def read(cls, raw: bytes, *, limit: int, sanitizes: bool) -> tuple[Self, bool]:
        try:
            members, is_bare = _items(raw, cls.items_field)
            value = msgspec.convert(members, cls, strict=True)
        except msgspec.ValidationError as error:
            raise body.invalid(error) from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise Malformed(f"body is not JSON: {error}") from None
        msgspec.structs.force_setattr(value, "is_bare", is_bare)
        return value, False


class AdapterEndpoint(Endpoint):
    """The methods of one path of a protocol adapter."""

    def __init__(self, service: Service, path: str, routes: Sequence[Route], adapter: Adapter) -> None:
        super().__init__(service, path, routes)
        self._adapter = adapter

    async def _admit(self, route: Route, headers: Headers, trail: Trail) -> Principal:
        if not route.needs_credential:
            return await super()._admit(route, headers, trail)
        who = await self._authenticate(route, headers)
        trail.tenant, trail.actor = who.tenant, who.actor
        trail.seat.belongs_to(who.tenant)
        self._adapter.limit(self._service, route, who)
        return who

    async def _authenticate(self, route: Route, headers: Headers) -> Principal:
        return await self._adapter.admit(self._service, route, headers)

    async def _body(self, route: Route, headers: Headers, receive: Receive, trail: Trail) -> tuple[Any, bytes | None]:
        """Decode the body regardless of its media type, because clients of these protocols do not always set one."""
        if route.raw_body:
            return None, None
        limit = self._largest(route)
        raw = await self._bytes(headers, receive, trail, limit=limit)
        if route.body is None or (route.body_optional and raw.strip() in (b"", b"null")):
            return None if route.body is None else route.body(), None
        assert issubclass(route.body, Lenient)
        try:
            value, unsanitized = route.body.read(raw, limit=limit, sanitizes=route.sanitizes)
        except Error as error:
            raise self._adapter.unreadable(error, route) from None
        return value, raw if unsanitized else None

    def _query(self, raw: bytes, route: Route) -> Any:
        """Return the parameters that the route knows, the last value of each; most blank ones count as absent."""
        given: dict[str, str] = {}
        kept = route.query.keeps_blank if issubclass(route.query, Lenient) else frozenset()
        with contextlib.suppress(ValueError):
            pairs = parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=body.MAX_PARAMETERS)
            given = {name: value for name, value in pairs if value or name in kept}
        if "\x00" in "".join(given.values()):
            raise self._adapter.unreadable(Invalid("a parameter has a NUL character"), route)
        known = {field.encode_name for field in msgspec.structs.fields(route.query)}
        try:
            return msgspec.convert({name: given[name] for name in known & given.keys()}, route.query, strict=False)
        except msgspec.ValidationError as error:
            raise self._adapter.unreadable(Invalid(str(error)), route) from None

    def _refusal(self, error: Exception, trail: Trail) -> Response:
        return self._adapter.refusal(error, trail, self.path)


def _items(raw: bytes, field: str) -> tuple[dict[str, Any], bool]:
    """Return the members of an object with the items of `field` as raw JSON, and whether the array was sent alone.

    Raises ValueError if the brackets around the items cannot be read.
    """
    text = raw.decode(errors="surrogateescape")
    start = _skip(text, 0)
    try:
        if text[start : start + 1] == "[":
            items, end = _array(text, start)
            members: dict[str, Any] = {field: items}
        else:
            members, end = _object(text, start, field)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _skip(text, end) != len(text):
        raise ValueError("there is text after it")
    return members, text[start : start + 1] == "["


def _object(text: str, start: int, field: str) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    place = _expect(text, start, "{")
    if text[place : place + 1] == "}":
        return members, place + 1
    while True:
        name, place = _DECODER.raw_decode(text, place)
        place = _expect(text, place, ":")
        if not isinstance(name, str):
            raise ValueError("a name is not a string")
        if name == field and text[place : place + 1] == "[":
            members[name], place = _array(text, place)
        else:
            end = _DECODER.raw_decode(text, place)[1]
            members[name], place = msgspec.json.decode(_bytes(text[place:end])), end
        place = _skip(text, place)
        if text[place : place + 1] == "}":
            return members, place + 1
        place = _expect(text, place, ",")


def _array(text: str, start: int) -> tuple[list[msgspec.Raw], int]:
    items: list[msgspec.Raw] = []
    place = _expect(text, start, "[")
    if text[place : place + 1] == "]":
        return items, place + 1
    while True:
        end = _DECODER.raw_decode(text, place)[1]
        items.append(msgspec.Raw(_bytes(text[place:end])))
        place = _skip(text, end)
        if text[place : place + 1] == "]":
            return items, place + 1
        place = _expect(text, place, ",")


def _expect(text: str, place: int, mark: str) -> int:
    """Return the position after a mark and the white space around it."""
    place = _skip(text, place)
    if text[place : place + 1] != mark:
        raise ValueError(f"expected {mark!r} at character {place}")
    return _skip(text, place + 1)


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    assert found is not None
    return found.end()


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")
