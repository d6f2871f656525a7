"""The dashboard as an ASGI application: routing, authorization, forms and error pages."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote

from interlock.client.local import LocalClient
from interlock.dashboard.http import (
    Fields,
    Page,
    PageRequest,
    PageResponse,
    RejectedForm,
    SessionChange,
    View,
    field_errors,
)
from interlock.dashboard.navigation import navigation_for
from interlock.dashboard.pages import (
    agents,
    approvals,
    audit,
    budgets,
    bulk,
    channels,
    enqueue,
    job,
    job_actions,
    jobs,
    limits,
    links,
    overview,
    queues,
    records,
    schedules,
    session,
    tokens,
    webhooks,
    workers,
)
from interlock.dashboard.render import Templates, permissions
from interlock.dashboard.sessions import MAX_SESSION_SECONDS, Session, Sessions
from interlock.dashboard.sign_in_throttle import SignInThrottle
from interlock.domain.approval import refuse_approver
from interlock.domain.principal import ROLES, Principal, user
from interlock.domain.session import KnownPerson
from interlock.engine.engine import Engine
from interlock.engine.sign_in import Flow, Provider
from interlock.errors import Error, Fatal, Forbidden, Invalid, NotFound, TooLarge, Unauthenticated, Unavailable

log = logging.getLogger(__name__)

MAX_FORM_BYTES: Final = 2 * 1024 * 1024
FORM_SECONDS: Final = 30.0
FORM: Final = "application/x-www-form-urlencoded"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TRAIL: Final = "interlock.trail"  # scope key of the request's log fields
COOKIE: Final = "interlock"
SIGN_IN_COOKIE: Final = "interlock-sign-in"
ANONYMOUS: Final = Principal("", "", frozenset())
RETRY_AFTER_SECONDS: Final = 5
NOTICES: Final = {
    "cancelled": "Job cancelled. For a running job, cancellation was requested from its worker.",
    "revoked": "Lease revoked.",
    "redriven": "This is the new job.",
    "edited": "Job updated.",
    "acknowledged": "Job acknowledged.",
    "sent": "Message sent.",
    "enqueued": "Job enqueued.",
    "approved": "Approved. The job will resume.",
    "voted": "Vote recorded; more approvals are required.",
    "denied": "Denied.",
    "paused": "Paused. Workers get no more jobs of this type.",
    "resumed": "Resumed.",
    "schedule_paused": "Paused. The schedule enqueues no more jobs.",
    "schedule_resumed": "Resumed.",
    "schedule_run": "Enqueued by hand. The ticks of the schedule do not change.",
    "limit_set": "Limit set.",
    "limit_deleted": "Limit deleted.",
    "budget_set": "Budget set. What was spent stays.",
    "budget_deleted": "Budget deleted.",
    "schedule_set": "Schedule set.",
    "schedule_deleted": "Schedule deleted. Its jobs remain.",
    "limit_held": "Held. Workers get no more jobs that name this limit.",
    "limit_released": "Released.",
    "budget_raised": "Raised. Waiting jobs continue as far as the budget goes.",
    "channel_set": "Channel set. Send a test message to check it.",
    "channel_deleted": "Channel deleted.",
    "redelivered": "Delivery scheduled.",
    "renewed": "Subscription renewed.",
    "limited": "Limit updated. A lower limit takes effect as running jobs finish.",
    "unsubscribed": "Subscription deleted.",
    "token_revoked": "Token revoked.",
    "token_exists": "This form has already created its token and shown it once. If you did not save it, revoke it.",
    "cancel": "Cancelled {n} {jobs}.",
    "cancel_more": "Cancelled {n} {jobs}. More jobs match the filter.",
    "redrive": "Redriven: {n} new {jobs}.",
    "redrive_more": "Redriven: {n} new {jobs}. More jobs match the filter.",
    "acknowledge": "Acknowledged {n} {jobs}.",
    "acknowledge_more": "Acknowledged {n} {jobs}. More jobs match the filter.",
    "signed_out": "Signed out.",
    "sessions_ended": "Sessions ended. The person can sign in again unless the identity provider rejects it.",
}


def pages() -> list[Page]:
    """Return all pages and actions."""
    modules = (
        overview, jobs, bulk, enqueue, job, records, job_actions, approvals, links, queues, schedules, limits, budgets,
        agents, workers, webhooks, tokens, channels, audit, session,
    )  # fmt: skip
    return [page for module in modules for page in module.pages]


class Dashboard:
    """All pages of one engine; with authentication off every caller is the local user."""

    def __init__(
        self,
        engine: Engine,
        *,
        auth: bool,
        tenant: str,
        sessions: Sessions | None = None,
        throttle: SignInThrottle | None = None,
        provider: Provider | None = None,
        accepts_tokens: bool = True,
        trace_url: str | None = None,
        public_url: str | None = None,
    ) -> None:
        self._engine = engine
        self._auth = auth
        self._local = Principal(tenant, user("local"), ROLES, unchecked=True)
        self._sessions = sessions or Sessions()
        self._throttle = throttle or SignInThrottle()
        self._provider = provider
        self._accepts_tokens = accepts_tokens
        self._trace_url = trace_url
        self._public_url = public_url
        self._templates = Templates()
        self._pages = [(page, page.path.split("/")[1:]) for page in pages()]

    @property
    def mounts(self) -> dict[str, Dashboard]:
        """Map the first segment of each path to this application."""
        return {f"/{segments[0]}": self for _, segments in self._pages} | {"/static": self}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        handler = _RequestHandler(self, scope, headers, receive)
        await _send(await handler.respond(), scope, send)

    async def begin(self, credential: str) -> str:
        """Begin a session of a valid token and return its cookie."""
        secret, cookie = self._sessions.begin(credential)
        who = await self._engine.tokens.authenticate(credential)
        await self._engine.sessions.begin(secret, who, life_seconds=MAX_SESSION_SECONDS)
        return cookie

    async def begin_of_person(self, who: Principal) -> str:
        """Begin a session of a person whom the identity provider authenticated, and return its cookie."""
        assert self._provider is not None
        secret, cookie = self._sessions.begin("")
        await self._engine.sessions.begin(secret, who, life_seconds=self._provider.settings.session_seconds)
        return cookie

    async def authenticate(self, session: Session) -> Principal:
        """Return the principal of a session that no server has ended."""
        found = await self._engine.sessions.find(session.id)
        if found is None:
            raise Unauthenticated
        if (person := found.principal) is None:
            return await self._engine.tokens.authenticate(session.credential)
        if self._provider is None:  # sign-in was switched off
            raise Unauthenticated
        return person

    def find(self, method: str, path: str) -> tuple[Page, dict[str, str]]:
        """Return the page of a path and its parameters; a literal path wins over one with parameters."""
        wanted = path.split("/")[1:]
        matching = [(page, segments) for page, segments in self._pages if _matches(segments, wanted)]
        for page, segments in [one for one in matching if one[1] == wanted] or matching:
            if page.method == method:
                named = zip(segments, wanted, strict=True)
                return page, {one.strip("{}"): unquote(other) for one, other in named if one.startswith("{")}
        raise Forbidden("this address accepts only a submitted form") if matching else NotFound(path, resource="page")


def _matches(segments: list[str], wanted: list[str]) -> bool:
    return len(segments) == len(wanted) and all(
        one == other or (one.startswith("{") and other) for one, other in zip(segments, wanted, strict=True)
    )


class _RequestHandler:
    """Handles one request."""

    def __init__(self, board: Dashboard, scope: Any, headers: Mapping[str, str], receive: Any) -> None:
        self._board, self._scope, self._headers, self._receive = board, scope, headers, receive
        self._is_https = "https" in (scope["scheme"], headers.get("x-forwarded-proto"))
        self._session: Session | None = None
        self._renewed: str | None = None
        self._query = Fields()
        self._who = ANONYMOUS
        self._rejected: RejectedForm | None = None
        self._people: Mapping[str, KnownPerson] = {}

    async def respond(self) -> PageResponse:
        path: str = self._scope["path"]
        method = "GET" if self._scope["method"] == "HEAD" else self._scope["method"]
        if path.startswith("/static/"):
            return self._static(path)
        try:
            self._query = Fields(self._scope["query_string"].decode("ascii", "replace"))
            page, parameters = self._board.find(method, path)
            self._session = self._board._sessions.read(self._cookie()) if self._board._auth else None
            self._who = await self._authorize(page)
            self._log_route(page)
            form = Fields()
            if method == "POST":
                self._reserve_body()
                form = await self._form()
                if not self._board._sessions.is_form_token(form.raw("form_token"), self._session):
                    raise Forbidden("this form has expired: reload the page and submit it again")
            client = LocalClient(self._board._engine, self._who)
            now = await client.now()
            request = PageRequest(
                client, self._who, now, parameters, self._query, form, self._board._provider, self._flow()
            )
            result = await self._handle(page, request, path)
            if isinstance(result, View):
                if self._board._provider is not None and self._who.actor:
                    self._people = await self._board._engine.sessions.people(self._who.tenant)
                response = self._view(result, now)
            else:
                response = result
            if response.change is not None:
                return await self._with_session(response, response.change)
            if response.stream is not None and self._session is not None:
                response = replace(response, stream=self._while_authorized(response.stream, self._session))
            return response if self._renewed is None else self._with_cookie(response, self._renewed)
        except Unauthenticated:
            return self._to_sign_in(method, path)
        except TimeoutError:
            return self._error_page(408, "The form was not received in time. Submit it again.")
        except (Unavailable, Fatal) as error:
            log.warning("storage unavailable: %s", error)
            return self._error_page(error.status, error.public)
        except Error as error:
            return self._error_page(error.status, str(error))
        except Exception as error:
            if getattr(error, "status", None) == Unavailable.status:  # the server is at its limit of requests
                return self._error_page(Unavailable.status, str(error))
            log.exception("dashboard page failed")
            return self._error_page(500, "Internal error. See the server log for details.")

    async def _authorize(self, page: Page) -> Principal:
        if not self._board._auth:
            return self._board._local
        try:
            if self._session is None:
                raise Unauthenticated
            who = await self._board.authenticate(self._session)
        except Unauthenticated:
            self._session = None
            if page.needs_sign_in:
                raise
            return ANONYMOUS
        if "interlock-live" not in self._headers:  # an automatic refresh does not extend the session
            self._renewed = self._board._sessions.renewed(self._session)
        if page.needs_sign_in and not who.roles & page.roles:
            self._who = who
            raise Forbidden(f"missing role: {' or '.join(sorted(page.roles))} is required")
        return who

    async def _handle(self, page: Page, request: PageRequest, path: str) -> View | PageResponse:
        """Run the page's handler; a rejected form is shown again with its errors and the submitted values."""
        try:
            return await (self._throttled(page, request) if page.checks_secret else page.handler(request))
        except (Invalid, TooLarge) as error:
            if page.form_page is None:
                raise
            self._rejected = RejectedForm(path, request.form, field_errors(error, page.field_names))
            view = await page.form_page(request)
            return replace(view, status=error.status)

    async def _while_authorized(self, pieces: AsyncIterator[bytes], session: Session) -> AsyncIterator[bytes]:
        """Stream while the token is valid; if the database is unavailable, it counts as valid."""
        async for piece in pieces:
            with suppress(Unavailable):
                await self._board.authenticate(session)
            yield piece

    async def _throttled(self, page: Page, request: PageRequest) -> View | PageResponse:
        """Handle a request with a secret; after too many wrong ones from one address, further wrong ones get 429.

        Behind a proxy all callers share one address, so a correct secret is never delayed.
        """
        try:
            result = await page.handler(request)
        except NotFound:
            if (response := self._wrong_secret()) is not None:
                return response
            raise
        if isinstance(result, View) and result.status == Unauthenticated.status:
            return self._wrong_secret() or result
        return result

    def _wrong_secret(self) -> PageResponse | None:
        """Record a wrong secret; return an error page if there were too many."""
        address = (self._scope.get("client") or ("",))[0]
        wait = self._board._throttle.seconds_to_wait(address)
        if wait <= 0:
            self._board._throttle.record_failure(address)
            return None
        response = self._error_page(429, f"Too many wrong tokens from your address. Try again in {math.ceil(wait)} s.")
        return replace(response, headers={**response.headers, "retry-after": str(math.ceil(wait))})

    def _log_route(self, page: Page) -> None:
        """Add route, tenant and actor to the request log; the path itself may contain secrets and is left out."""
        if (trail := self._scope.get(TRAIL)) is not None:
            trail.route = page.path
            trail.tenant, trail.actor = self._who.tenant or None, self._who.actor or None

    def _reserve_body(self) -> None:
        """Count the form against the caller's share of memory, as every other request body."""
        if (trail := self._scope.get(TRAIL)) is not None:
            trail.seat.belongs_to(self._who.tenant)
            trail.seat.hold(min(int(self._headers.get("content-length", MAX_FORM_BYTES)), MAX_FORM_BYTES))

    async def _form(self) -> Fields:
        if self._headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise Invalid("unsupported content type: expected a submitted form")
        trail = self._scope.get(TRAIL)
        with trail.seat.arriving() if trail is not None else nullcontext():
            return await self._fields(bytearray())

    async def _fields(self, body: bytearray) -> Fields:
        async with asyncio.timeout(FORM_SECONDS):
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise Invalid("the form is incomplete: submit it again")
                body += message.get("body", b"")
                if len(body) > MAX_FORM_BYTES:
                    raise TooLarge("form", len(body), MAX_FORM_BYTES)
                if not message.get("more_body", False):
                    return Fields(body.decode("utf-8", "replace"))

    def _origin(self) -> str:
        """Return the address of this site, for links that people copy."""
        scheme = "https" if self._is_https else "http"
        return self._board._public_url or f"{scheme}://{self._headers.get('host', '')}"

    def _view(self, view: View, now: int) -> PageResponse:
        who = self._who
        n = self._query.one("n") or ""
        n = n if n.isascii() and n.isdecimal() else "0"
        notice = NOTICES.get(self._query.one("notice") or "", "")
        context = {
            "now": now,
            "who": who,
            "may": permissions(who) | {"decide": bool(who.actor) and refuse_approver(who) is None},
            "auth": self._board._auth,
            "navigation": navigation_for(who),
            "here": self._scope["path"],
            "form_token": self._board._sessions.form_token(self._session),
            "notice": notice.format(n=n, jobs="job" if n == "1" else "jobs"),
            "rejected": self._rejected,
            "people": self._people,
            "provider": None if self._board._provider is None else self._board._provider.settings.label,
            "accepts_tokens": self._board._accepts_tokens,
            "trace_url": self._board._trace_url,
            "origin": self._origin(),
            "query": self._query,
        }
        body = self._board._templates.page(view.template, context | dict(view.context))
        headers = {"content-type": "text/html; charset=utf-8", **view.headers}
        return PageResponse(view.status, body, headers, change=view.change)

    def _error_page(self, status: int, message: str) -> PageResponse:
        may_repeat = status == Unavailable.status and self._scope["method"] == "GET"
        context = {"status": status, "message": message, "again": self._url() if may_repeat else None}
        response = self._view(View("error.html", context, status), 0)
        if status != Unavailable.status:
            return response
        wait = str(RETRY_AFTER_SECONDS)
        retry = {"retry-after": wait, "refresh": wait} if may_repeat else {"retry-after": wait}
        return replace(response, headers={**response.headers, **retry})

    def _url(self) -> str:
        """Return the path and query of this request."""
        query = self._scope["query_string"].decode("ascii", "replace")
        path: str = self._scope["path"]
        return f"{path}?{query}" if query else path

    def _to_sign_in(self, method: str, path: str) -> PageResponse:
        back = self._url()
        where = f"/sign-in?next={quote(back, safe='')}" if method == "GET" and path != "/" else "/sign-in"
        return PageResponse(303, headers={"location": where})

    async def _with_session(self, response: PageResponse, change: SessionChange) -> PageResponse:
        """Set or clear the cookies after signing in or out."""
        sessions = self._board._sessions
        if change.starting is not None:
            pending = sessions.start_sign_in(change.starting, self._session)
            return self._with_cookie(response, pending, SIGN_IN_COOKIE)
        if self._session is not None:
            await self._board._engine.sessions.end(self._session.id, self._who)
        if change.person is not None:
            started = sessions.read_sign_in(self._cookie(SIGN_IN_COOKIE))
            if started is not None and started.replaces is not None:
                await self._board._engine.sessions.end(started.replaces, self._who)
            response = self._with_cookie(response, await self._board.begin_of_person(change.person))
            return self._with_cookie(response, "", SIGN_IN_COOKIE)
        cookie = "" if change.credential is None else await self._board.begin(change.credential)
        return self._with_cookie(response, cookie)

    def _with_cookie(self, response: PageResponse, value: str, name: str = COOKIE) -> PageResponse:
        # The provider's redirect is a request from another site: only a lax cookie is sent with it.
        site = "Lax" if name == SIGN_IN_COOKIE else "Strict"
        flags = f"; Path=/; HttpOnly; SameSite={site}" + ("" if value else "; Max-Age=0")
        flags += "; Secure" if self._is_https else ""
        return replace(response, cookies=(*response.cookies, f"{self._cookie_name(name)}={value}{flags}"))

    def _cookie_name(self, name: str) -> str:
        return f"__Host-{name}" if self._is_https else name

    def _cookie(self, wanted: str = COOKIE) -> str | None:
        # Our cookies are unquoted; the standard parser takes seconds for a long quoted one.
        for one in self._headers.get("cookie", "").split(";"):
            name, _, value = one.strip().partition("=")
            if name == self._cookie_name(wanted):
                return value or None
        return None

    def _flow(self) -> Flow | None:
        """Return the sign-in that this browser has started at the identity provider."""
        if self._board._provider is None:
            return None
        pending = self._board._sessions.read_sign_in(self._cookie(SIGN_IN_COOKIE))
        return None if pending is None else pending.flow

    def _static(self, path: str) -> PageResponse:
        file = self._board._templates.files.get(path.removeprefix("/static/"))
        if file is None:
            return self._error_page(404, "No such file.")
        headers = {"content-type": file.media_type, "cache-control": "public, max-age=31536000, immutable"}
        return PageResponse(200, file.body, headers)


async def _send(response: PageResponse, scope: Any, send: Any) -> None:
    # With no referrer a browser omits the Origin of a form, which the middleware checks.
    headers = {"content-security-policy": POLICY, "referrer-policy": "same-origin", **response.headers}
    if response.stream is None:
        headers["content-length"] = str(len(response.body))
    named = [*headers.items(), *(("set-cookie", cookie) for cookie in response.cookies)]
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in named]
    await send({"type": "http.response.start", "status": response.status, "headers": raw})
    if response.stream is not None:
        pieces: Any = response.stream  # closed also when a HEAD request reads none of it
        try:
            async with aclosing(pieces):
                if scope["method"] != "HEAD":
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Unauthenticated:
            return  # without the final chunk, so that the client sees the download as incomplete
    body = response.body if scope["method"] != "HEAD" else b""
    await send({"type": "http.response.body", "body": body, "more_body": False})
