"""Base classes of protocol adapters: endpoints with another protocol's credentials, bodies and errors."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, Self
from urllib.parse import parse_qsl

import msgspec

from interlock.api import body, json_items
from interlock.api.endpoint import Endpoint, refusal
from interlock.api.headers import Headers
from interlock.api.routes import Receive, Request, Response, Route
from interlock.api.service import Service, Trail
from interlock.domain.principal import Principal
from interlock.errors import Error, Invalid, Malformed

MAX_LEASE_SECONDS: Final = 30 * 86_400.0  # those servers had no limit, and their workers do not expect one


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
            members, is_bare = json_items.split(raw, cls.items_field)
            value = msgspec.convert(members, cls, strict=True)
        except msgspec.ValidationError as error:
            raise body.invalid(error) from None
        except (ValueError, msgspec.MsgspecError) as error:
            raise Malformed(f"body is not JSON: {error}") from None
        msgspec.structs.force_setattr(value, "is_bare", is_bare)
        return value, False


class AdapterError(Exception):
    """A rejected request, with the error document of a protocol adapter."""

    def __init__(self, status: int, document: Mapping[str, Any], *, headers: Mapping[str, str] | None = None) -> None:
        self.status, self.document, self.headers = status, document, dict(headers or {})
        super().__init__(str(document))


class Adapter(Protocol):
    """Authentication and error format of one protocol."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Paths below which errors have the format of this protocol, those of unknown routes included."""
        ...

    async def admit(self, service: Service, route: Route, headers: Headers) -> Principal:
        """Return the caller, if they may use this route."""
        ...

    def limit(self, service: Service, route: Route, who: Principal) -> None:
        """Reject a caller over the rate limit."""
        ...

    def unreadable(self, error: Error, route: Route) -> AdapterError:
        """Return the error for a body or query that cannot be decoded."""
        ...

    def translate(self, error: Exception, status: int, path: str) -> tuple[int, Mapping[str, Any]]:
        """Return the status and document for an error of the engine."""
        ...


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
        """The parameters that the route knows, the last of several; most blank ones count as absent."""
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
        return refusal_of(self._adapter, error, trail, self.path)


def refusal_of(adapter: Adapter, error: Exception, trail: Trail, path: str) -> Response:
    """The error response of a protocol, also where no route of it was reached."""
    if isinstance(error, AdapterError):
        trail.code = "refused"
        return Response(error.status, msgspec.json.encode(error.document), headers=error.headers)
    plain = refusal(error, trail)  # it also logs defects
    status, document = adapter.translate(error, plain.status, path)
    return Response(status, msgspec.json.encode(document), headers=plain.headers)
