"""Sign in with a token or at the identity provider, and sign out."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, SessionChange, View, redirect, show
from interlock.dashboard.navigation import dashboard_roles, navigation_for
from interlock.errors import Forbidden, SignInFailed, Unauthenticated

pages = Pages()

MAX_NEXT_LENGTH: Final = 1_000  # a longer path does not fit into the cookie of the sign-in


@pages.get("/sign-in", open=True)
async def sign_in_page(request: PageRequest) -> View | PageResponse:
    """Show the sign-in form."""
    return show("sign_in.html", next=local_path(request.query.one("next")), error=None)


@pages.post("/sign-in", roles=(), open=True, checks_secret=True)
async def sign_in(request: PageRequest) -> View | PageResponse:
    """Start a session under a new cookie."""
    next, credential = local_path(request.form.one("next")), request.form.one("token") or ""
    try:
        navigation = navigation_for(await request.authenticate(credential))
    except Unauthenticated:
        return show(
            "sign_in.html", status=Unauthenticated.status, next=next, error="Invalid, expired or revoked token."
        )
    if not navigation:
        error = f"This token has no role for the dashboard: it needs {dashboard_roles()}."
        return show("sign_in.html", status=Forbidden.status, next=next, error=error)
    return PageResponse(
        303,
        headers={"location": navigation[0].path if next == "/" else next},
        change=SessionChange(credential=credential),
    )


@pages.get("/sign-in/start", open=True)
async def start(request: PageRequest) -> View | PageResponse:
    """Lead to the identity provider; with `fresh`, it asks for the credentials even if its own session is valid."""
    next = local_path(request.query.one("next"))
    fresh = request.query.one("fresh") is not None
    url, flow = await request.identity_provider.start(next if len(next) <= MAX_NEXT_LENGTH else "/", fresh=fresh)
    return PageResponse(303, headers={"location": url}, change=SessionChange(starting=flow))


@pages.get("/sign-in/callback", open=True)
async def callback(request: PageRequest) -> View | PageResponse:
    """Begin the session of a person whom the identity provider authenticated.

    The provider's redirect belongs to its site, and the session cookie is not sent with such requests. So this is a
    page that leads on, not a redirect.
    """
    provider = request.identity_provider
    if request.flow is None:
        raise SignInFailed("this browser has started no sign-in in the last 10 minutes: sign in again")
    response = {name: request.query.one(name) for name in ("code", "state", "iss", "error")}
    who = await provider.finish(request.flow, response)
    navigation = navigation_for(who)
    if not navigation:
        raise SignInFailed(f"your account has no role for the dashboard: it needs {dashboard_roles()}")
    next = navigation[0].path if request.flow.next == "/" else request.flow.next
    return _leading_to("signed_in.html", next, SessionChange(person=who))


@pages.post("/sign-out", roles=(), open=True)
async def sign_out(request: PageRequest) -> View | PageResponse:
    """End the session on all servers and in the browser, then at the identity provider if it began there.

    Browsers do not follow a redirect of a form to another site (`form-action`). So this is a page that leads on.
    """
    url = None
    if request.provider is not None and request.who.person is not None:
        url = await request.provider.end_session_url()
    if url is not None:
        return _leading_to("signed_out.html", url, SessionChange())
    return replace(redirect("/sign-in", notice="signed_out"), change=SessionChange())


@pages.post("/sign-out/everywhere", roles=(), open=True)
async def sign_out_everywhere(request: PageRequest) -> View | PageResponse:
    """End all sessions of the caller, also those of other browsers."""
    if request.who.actor:
        await request.client.engine.sessions.end_all(request.who, request.who.actor)
    return await sign_out(request)


@pages.post("/sessions/end", roles=["admin"])
async def end_sessions(request: PageRequest) -> View | PageResponse:
    """End all sessions of a person."""
    await request.client.engine.sessions.end_all(request.who, request.form.one("actor") or "")
    return redirect("/tokens", notice="sessions_ended")


def _leading_to(template: str, url: str, change: SessionChange) -> View:
    return replace(show(template, next=url), headers={"refresh": f"0; url={url}"}, change=change)


def local_path(path: str | None) -> str:
    """Return a path of this site; anything that could lead to another site becomes the overview."""
    if path is None or not path.startswith("/") or path[1:2] in ("/", "\\") or not path.isprintable():
        return "/"
    return path if path.isascii() else "/"
