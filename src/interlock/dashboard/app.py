"""The dashboard as an ASGI application: from a request to a page, by somebody who may have it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, nullcontext, suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote

from interlock.dashboard.guesses import Guesses
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
from interlock.dashboard.sessions import Session, Sessions
from interlock.dashboard.ways import ways_of
from interlock.dashboard.web import Ask, Fields, Page, Reply, View
from interlock.domain.approval import refuse_approver
from interlock.domain.principal import ROLES, Principal, user
from interlock.engine.engine import Engine
from interlock.errors import Error, Fatal, Forbidden, Invalid, NotFound, TooLarge, Unauthenticated, Unavailable

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
RETRY_AFTER_SECONDS: Final = 5
SAID: Final = {
    "cancelled": "The job is cancelled, or its worker has been asked to stop.",
    "revoked": "The lease has been ended.",
    "redriven": "This is the new job.",
    "edited": "The job has been changed.",
    "approved": "Approved. The job goes on.",
    "voted": "Your vote counts; more are needed.",
    "approved_next": "Approved; that job goes on. This is the next one.",
    "denied": "Denied.",
    "denied_next": "Denied. This is the next one.",
    "paused": "Paused: no more jobs of this type are handed out.",
    "resumed": "Resumed.",
    "redelivered": "It will be sent again.",
    "renewed": "Renewed.",
    "limited": "The limit is set; it acts at once, a lower one as jobs end.",
    "unsubscribed": "The subscription is gone.",
    "token_revoked": "The token is revoked.",
    "token_made_before": "This form has made its token already, and shown it. Revoke it if you did not keep it.",
    "bulk": "Done for {n} {jobs}.",
    "bulk_more": "Done for {n} {jobs}. There are more:",
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

    def __init__(
        self,
        engine: Engine,
        *,
        auth: bool,
        tenant: str,
        sessions: Sessions | None = None,
        guesses: Guesses | None = None,
    ) -> None:
        self._engine = engine
        self._auth = auth
        self._local = Principal(tenant, user("local"), ROLES, unchecked=True)
        self._sessions = sessions or Sessions()
        self._guesses = guesses or Guesses()
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
        """The page of a path and its parameters; a path that is spelled out goes before one with parameters."""
        wanted = path.split("/")[1:]
        fitting = [(page, segments) for page, segments in self._pages if _fits(segments, wanted)]
        for page, segments in [one for one in fitting if one[1] == wanted] or fitting:
            if page.method == method:
                named = zip(segments, wanted, strict=True)
                return page, {one.strip("{}"): unquote(other) for one, other in named if one.startswith("{")}
        raise Forbidden("this is done by a form of ours, not by a link") if fitting else NotFound(path, what="page")


def _fits(segments: list[str], wanted: list[str]) -> bool:
    return len(segments) == len(wanted) and all(
        one == other or (one.startswith("{") and other) for one, other in zip(segments, wanted, strict=True)
    )


class _Exchange:
    """One request and what is known about it so far."""

    def __init__(self, board: Dashboard, scope: Any, headers: Mapping[str, str], receive: Any) -> None:
        self._board, self._scope, self._headers, self._receive = board, scope, headers, receive
        self._is_https = "https" in (scope["scheme"], headers.get("x-forwarded-proto"))
        self._session: Session | None = None
        self._renewed: str | None = None
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
            self._session = self._board._sessions.read(self._cookie()) if self._board._auth else None
            self._who = await self._signed_in(page)
            self._note(page)
            form = Fields()
            if method == "POST":
                self._take_room()
                form = await self._form()
                if not self._board._sessions.is_form_token(form.raw("form_token"), self._session):
                    raise Forbidden("this form is out of date; go back, load the page again, and repeat")
            now = await self._board._engine.reads.now()
            ask = Ask(self._board._engine, self._who, now, parameters, self._query, form)
            answer = await (self._guessed(page, ask) if page.takes_a_secret else page.handler(ask))
            reply = self._view(answer, now) if isinstance(answer, View) else self._with_session(page, answer)
            if reply.stream is not None and self._session is not None:
                reply = replace(reply, stream=self._while_admitted(reply.stream, self._session))
            return reply if self._renewed is None else self._with_cookie(reply, self._renewed)
        except Unauthenticated:
            return self._to_sign_in(method, path)
        except TimeoutError:
            return self._refusal(408, "The form took too long to arrive.")
        except (Unavailable, Fatal) as error:
            log.warning("the storage cannot be used: %s", error)
            return self._refusal(error.status, error.public)
        except Error as error:
            return self._refusal(error.status, str(error))
        except Exception as error:
            if getattr(error, "status", None) == Unavailable.status:  # the door's own word that there is no room
                return self._refusal(Unavailable.status, str(error))
            log.exception("a page of the dashboard failed")
            return self._refusal(500, "Something went wrong here; the log of the server says what.")

    async def _signed_in(self, page: Page) -> Principal:
        if not self._board._auth:
            return self._board._local
        try:
            if self._session is None:
                raise Unauthenticated
            who = await self._board._engine.tokens.authenticate(self._session.credential)
        except Unauthenticated:
            self._session = None
            if page.needs_sign_in:
                raise
            return NOBODY
        if "interlock-live" not in self._headers:  # a page that only refreshes itself is not use
            self._renewed = self._board._sessions.renewed(self._session)
        if page.needs_sign_in and not who.roles & page.roles:
            self._who = who
            raise Forbidden(f"this needs the role {' or '.join(sorted(page.roles))}")
        return who

    async def _while_admitted(self, pieces: AsyncIterator[bytes], session: Session) -> AsyncIterator[bytes]:
        """The pieces of a long answer while the token counts; as long as nobody can tell, it does."""
        async for piece in pieces:
            with suppress(Unavailable):
                await self._board._engine.tokens.authenticate(session.credential)
            yield piece

    async def _guessed(self, page: Page, ask: Ask) -> View | Reply:
        """Answer somebody who says a secret; whoever has said too many wrong ones is only told to wait.

        Behind a proxy all callers have one address, so whoever says a right one must not wait for the others.
        """
        try:
            answer = await page.handler(ask)
        except NotFound:
            if (refusal := self._wrong()) is not None:
                return refusal
            raise
        if isinstance(answer, View) and answer.status == Unauthenticated.status:
            return self._wrong() or answer
        return answer

    def _wrong(self) -> Reply | None:
        """Note a wrong secret; a refusal if too many came from there before."""
        address = (self._scope.get("client") or ("",))[0]
        wait = self._board._guesses.seconds_to_wait(address)
        if wait <= 0:
            self._board._guesses.note_wrong(address)
            return None
        refusal = self._refusal(
            429, f"Too many wrong tokens came from where you are. Try again in {math.ceil(wait)} s."
        )
        return replace(refusal, headers={**refusal.headers, "retry-after": str(math.ceil(wait))})

    def _note(self, page: Page) -> None:
        """Say who asked for what in the log line of the request; the address itself is never in it."""
        if (trail := self._scope.get(TRAIL)) is not None:
            trail.route = page.path
            trail.tenant, trail.actor = self._who.tenant or None, self._who.actor or None

    def _take_room(self) -> None:
        """Count a form for whoever sends it, as every other body is, so that strangers leave room to those we know."""
        if (trail := self._scope.get(TRAIL)) is not None:
            trail.seat.belongs_to(self._who.tenant)
            trail.seat.hold(min(int(self._headers.get("content-length", LARGEST_FORM)), LARGEST_FORM))

    async def _form(self) -> Fields:
        if self._headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            raise Invalid("this takes a form")
        trail = self._scope.get(TRAIL)
        with trail.seat.arriving() if trail is not None else nullcontext():
            return await self._fields(bytearray())

    async def _fields(self, body: bytearray) -> Fields:
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
        n = n if n.isascii() and n.isdecimal() else "0"
        said = SAID.get(self._query.one("said") or "", "")
        shown = {
            "now": now,
            "who": who,
            "may": may_look(who) | {"decide": bool(who.actor) and refuse_approver(who) is None},
            "auth": self._board._auth,
            "navigation": ways_of(who),
            "here": self._scope["path"],
            "form_token": self._board._sessions.form_token(self._session),
            "said": said.format(n=n, jobs="job" if n == "1" else "jobs"),
            "query": self._query,
        }
        body = self._board._templates.page(view.template, shown | dict(view.shown))
        return Reply(view.status, body, {"content-type": "text/html; charset=utf-8"})

    def _refusal(self, status: int, message: str) -> Reply:
        may_repeat = status == Unavailable.status and self._scope["method"] == "GET"
        shown = {"status": status, "message": message, "again": self._asked_for() if may_repeat else None}
        reply = self._view(View("refused.html", shown, status), 0)
        if status != Unavailable.status:
            return reply
        wait = str(RETRY_AFTER_SECONDS)
        told = {"retry-after": wait, "refresh": wait} if may_repeat else {"retry-after": wait}
        return replace(reply, headers={**reply.headers, **told})

    def _asked_for(self) -> str:
        """The address of this page, from the root on."""
        query = self._scope["query_string"].decode("ascii", "replace")
        path: str = self._scope["path"]
        return f"{path}?{query}" if query else path

    def _to_sign_in(self, method: str, path: str) -> Reply:
        back = self._asked_for()
        where = f"/sign-in?next={quote(back, safe='')}" if method == "GET" and path != "/" else "/sign-in"
        return Reply(303, headers={"location": where})

    def _with_session(self, page: Page, reply: Reply) -> Reply:
        """Put what signing in or out means into the cookie."""
        if page.handler not in (session.sign_in, session.sign_out) or reply.status != 303:
            return reply
        if self._session is not None:
            self._board._sessions.end(self._session)
        self._renewed = None
        credential = reply.headers.get(session.CREDENTIAL)
        kept = {name: value for name, value in reply.headers.items() if name != session.CREDENTIAL}
        cookie = "" if credential is None else self._board._sessions.begin(credential)
        return self._with_cookie(Reply(reply.status, headers=kept), cookie)

    def _with_cookie(self, reply: Reply, cookie: str) -> Reply:
        flags = "; Path=/; HttpOnly; SameSite=Strict" + ("" if cookie else "; Max-Age=0")
        flags += "; Secure" if self._is_https else ""
        return replace(reply, headers={**reply.headers, "set-cookie": f"{self._cookie_name}={cookie}{flags}"})

    @property
    def _cookie_name(self) -> str:
        return f"__Host-{COOKIE}" if self._is_https else COOKIE

    def _cookie(self) -> str | None:
        # Ours is plain; the reader of the library takes seconds over a long quoted one, whoever sends it.
        for one in self._headers.get("cookie", "").split(";"):
            name, _, value = one.strip().partition("=")
            if name == self._cookie_name:
                return value or None
        return None

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
    if reply.stream is not None:
        pieces: Any = reply.stream  # an iterator that can be closed, and is, also where nothing of it is wanted
        try:
            async with aclosing(pieces):
                if scope["method"] != "HEAD":
                    async for piece in pieces:
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
        except Unauthenticated:
            return  # without an end, so that nobody takes a part for the whole
    body = reply.body if scope["method"] != "HEAD" else b""
    await send({"type": "http.response.body", "body": body, "more_body": False})
