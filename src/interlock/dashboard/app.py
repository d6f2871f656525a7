"""The dashboard as an ASGI application: from a request to a page, by somebody who may have it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, Final
from urllib.parse import quote, unquote

from interlock.dashboard.pages import (
    agents,
    approvals,
    audit,
    bulk,
    job,
    jobs,
    links,
    overview,
    queues,
    session,
    tokens,
    webhooks,
    workers,
)
from interlock.dashboard.render import Templates, may_look
from interlock.dashboard.sessions import Sessions
from interlock.dashboard.web import Ask, Fields, Page, Reply, View
from interlock.domain.approval import refuse_approver
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.errors import Error, Forbidden, Invalid, NotFound, TooLarge, Unauthenticated

log = logging.getLogger(__name__)

LARGEST_FORM: Final = 2 * 1024 * 1024
FORM_SECONDS: Final = 30.0
FORM: Final = "application/x-www-form-urlencoded"
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
TRAIL: Final = "interlock.trail"  # where the door keeps what it logs of a request
COOKIE: Final = "interlock"
NOBODY: Final = Principal("", "", frozenset())
NAVIGATION: Final = (
    ("/", "Overview", "read"),
    ("/jobs", "Jobs", "read"),
    ("/approvals", "Approvals", "read"),
    ("/queues", "Queues", "read"),
    ("/agents", "Agents", "read"),
    ("/workers", "Workers", "read"),
    ("/webhooks", "Webhooks", "operate"),
    ("/tokens", "Tokens", "admin"),
    ("/audit", "Audit", "admin"),
)
SAID: Final = {
    "cancelled": "The job is cancelled, or its worker has been asked to stop.",
    "revoked": "The lease has been ended.",
    "redriven": "This is the new job.",
    "edited": "The job has been changed.",
    "approved": "Approved. The job goes on.",
    "voted": "Your vote counts; more are needed.",
    "denied": "Denied.",
    "paused": "Paused: no more jobs of this type are handed out.",
    "resumed": "Resumed.",
    "redelivered": "It will be sent again.",
    "unsubscribed": "The subscription is gone.",
    "token_revoked": "The token is revoked.",
    "bulk": "Done for {n} jobs.",
    "signed_out": "You are signed out.",
}


def pages() -> list[Page]:
    """Every page and every action there is."""
    modules = (
        overview, jobs, bulk, job, approvals, links, queues, agents, workers, webhooks, tokens, audit, session,
    )  # fmt: skip
    return [page for module in modules for page in module.pages]


class Dashboard:
    """All pages over one engine; with auth off everybody is the one local user."""

    def __init__(self, engine: Engine, *, auth: bool, tenant: str, sessions: Sessions | None = None) -> None:
        self._engine = engine
        self._auth = auth
        self._local = Principal(tenant, user("local"), ROLES, unchecked=True)
        self._sessions = sessions or Sessions()
        self._templates = Templates()
        self._pages = [(page, page.path.split("/")[1:]) for page in pages()]

    @property
    def mounts(self) -> dict[str, Dashboard]:
        """This application under the first segment of each of its paths."""
        return {f"/{segments[0]}": self for _, segments in self._pages} | {"/static": self}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = _Exchange(self, scope, headers, receive)
        await _send(await exchange.answer(), scope, send)

    def find(self, method: str, path: str) -> tuple[Page, dict[str, str]]:
        """The page of a path and its parameters."""
        wanted, known = path.split("/")[1:], False
        for page, segments in self._pages:
            if len(segments) != len(wanted):
                continue
            pairs = list(zip(segments, wanted, strict=True))
            if all(one == other or (one.startswith("{") and other) for one, other in pairs):
                known = True
                if page.method == method:
                    return page, {one.strip("{}"): unquote(other) for one, other in pairs if one.startswith("{")}
        raise Forbidden("this is done by a form of ours, not by a link") if known else NotFound(path, what="page")


class _Exchange:
    """One request and what is known about it so far."""

    def __init__(self, board: Dashboard, scope: Any, headers: Mapping[str, str], receive: Any) -> None:
        self._board, self._scope, self._headers, self._receive = board, scope, headers, receive
        self._is_https = "https" in (scope["scheme"], headers.get("x-forwarded-proto"))
        self._session = self._cookie()
        self._query = Fields()
        self._who = NOBODY

    async def answer(self) -> Reply:
        path: str = self._scope["path"]
        method = "GET" if self._scope["method"] == "HEAD" else self._scope["method"]
        if path.startswith("/static/"):
            return self._static(path)
        try:
            self._query = Fields(self._scope["query_string"].decode("ascii", "replace"))
            page, parameters = self._board.find(method, path)
            self._who = await self._signed_in(page)
            self._note(page)
            form = Fields()
            if method == "POST":
                form = await self._form()
                if not self._board._sessions.is_form_token(form.raw("form_token"), self._session):
                    raise Forbidden("this form is out of date; go back, load the page again, and repeat")
            now = await self._board._engine.reads.now()
            ask = Ask(self._board._engine, self._who, now, parameters, self._query, form, self._session)
            answer = await page.handler(ask)
            return self._view(answer, now) if isinstance(answer, View) else self._with_session(page, answer)
        except Unauthenticated:
            return self._to_sign_in(method, path)
        except TimeoutError:
            return self._refusal(408, "The form took too long to arrive.")
        except Error as error:
            return self._refusal(error.status, str(error))
        except Exception:
            log.exception("a page of the dashboard failed")
            return self._refusal(500, "Something went wrong here; the log of the server says what.")

    async def _signed_in(self, page: Page) -> Principal:
        if not self._board._auth:
            return self._board._local
        is_use = "interlock-live" not in self._headers
        credential = self._board._sessions.credential(self._session, used=is_use)
        try:
            if credential is None:
                raise Unauthenticated
            who = await self._board._engine.tokens.authenticate(credential)
        except Unauthenticated:
            self._board._sessions.end(self._session)
            self._session = None
            if page.needs_sign_in:
                raise
            return NOBODY
        if page.needs_sign_in and not who.roles & page.roles:
            self._who = who
            raise Forbidden(f"this needs the role {' or '.join(sorted(page.roles))}")
        return who

    def _note(self, page: Page) -> None:
        """Say who asked for what in the log line of the request; the address itself is never in it."""
        if (trail := self._scope.get(TRAIL)) is not None:
            trail.route = page.path
            trail.tenant, trail.actor = self._who.tenant or None, self._who.actor or None

    async def _form(self) -> Fields:
        if self._headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise Invalid("this takes a form")
        body = bytearray()
        async with asyncio.timeout(FORM_SECONDS):
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise Invalid("the form did not come to its end")
                body += message.get("body", b"")
                if len(body) > LARGEST_FORM:
                    raise TooLarge("form", len(body), LARGEST_FORM)
                if not message.get("more_body", False):
                    return Fields(body.decode("utf-8", "replace"))

    def _view(self, view: View, now: int) -> Reply:
        who = self._who
        n = self._query.one("n") or ""
        said = SAID.get(self._query.one("said") or "", "")
        shown = {
            "now": now,
            "who": who,
            "may": may_look(who) | {"decide": bool(who.actor) and refuse_approver(who) is None},
            "auth": self._board._auth,
            "navigation": [(path, name) for path, name, role in NAVIGATION if who.may(role)],
            "here": self._scope["path"],
            "form_token": self._board._sessions.form_token(self._session),
            "said": said.format(n=n if n.isascii() and n.isdecimal() else 0),
            "query": self._query,
        }
        body = self._board._templates.page(view.template, shown | dict(view.shown))
        return Reply(view.status, body, {"content-type": "text/html; charset=utf-8"})

    def _refusal(self, status: int, message: str) -> Reply:
        return self._view(View("refused.html", {"status": status, "message": message}, status), 0)

    def _to_sign_in(self, method: str, path: str) -> Reply:
        query = self._scope["query_string"].decode("ascii", "replace")
        back = f"{path}?{query}" if query else path
        where = f"/sign-in?next={quote(back, safe='')}" if method == "GET" and path != "/" else "/sign-in"
        return Reply(303, headers={"location": where})

    def _with_session(self, page: Page, reply: Reply) -> Reply:
        """Put what signing in or out means into the cookie."""
        if page.handler is session.sign_in:
            credential = reply.headers.get(session.CREDENTIAL, "")
            self._board._sessions.end(self._session)
            value, age = self._board._sessions.begin(credential), ""
        elif page.handler is session.sign_out:
            self._board._sessions.end(self._session)
            value, age = "", "; Max-Age=0"
        else:
            return reply
        flags = f"; Path=/; HttpOnly; SameSite=Strict{age}" + ("; Secure" if self._is_https else "")
        kept = {name: one for name, one in reply.headers.items() if name != session.CREDENTIAL}
        return Reply(reply.status, headers=kept | {"set-cookie": f"{self._cookie_name}={value}{flags}"})

    @property
    def _cookie_name(self) -> str:
        return f"__Host-{COOKIE}" if self._is_https else COOKIE

    def _cookie(self) -> str | None:
        try:
            found = SimpleCookie(self._headers.get("cookie", "")).get(self._cookie_name)
        except CookieError:
            return None
        return found.value or None if found is not None else None

    def _static(self, path: str) -> Reply:
        file = self._board._templates.files.get(path.removeprefix("/static/"))
        if file is None:
            return self._refusal(404, "There is no such file.")
        headers = {"content-type": file.media_type, "cache-control": "public, max-age=31536000, immutable"}
        return Reply(200, file.body, headers)


async def _send(reply: Reply, scope: Any, send: Any) -> None:
    # Without a referrer a browser would not say where a form comes from, and the door asks for that.
    headers = {"content-security-policy": POLICY, "referrer-policy": "same-origin", **reply.headers}
    if reply.stream is None:
        headers["content-length"] = str(len(reply.body))
    raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": raw})
    if reply.stream is not None and scope["method"] != "HEAD":
        async for piece in reply.stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    body = reply.body if scope["method"] != "HEAD" else b""
    await send({"type": "http.response.body", "body": body, "more_body": False})
