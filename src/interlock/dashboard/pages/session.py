"""Signing in with a token, and out again."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.ways import roles_that_look, ways_of
from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.errors import Forbidden, Unauthenticated

pages = Pages()

CREDENTIAL: Final = "interlock-credential"  # from here to the application around the pages, never to a browser


@pages.get("/sign-in", open=True)
async def sign_in_page(ask: Ask) -> View | Reply:
    """Ask for a token."""
    return show("sign_in.html", next=local_path(ask.query.one("next")), wrong=None)


@pages.post("/sign-in", roles=(), open=True, takes_a_secret=True)
async def sign_in(ask: Ask) -> View | Reply:
    """Begin a session, under a cookie that nobody had before."""
    next, credential = local_path(ask.form.one("next")), ask.form.one("token") or ""
    try:
        ways = ways_of(await ask.engine.tokens.authenticate(credential))
    except Unauthenticated:
        return show("sign_in.html", status=Unauthenticated.status, next=next, wrong="This token lets nobody in.")
    if not ways:
        lacks = f"This token is good, but there is no page for its roles: that needs {roles_that_look()}."
        return show("sign_in.html", status=Forbidden.status, next=next, wrong=lacks)
    return Reply(303, headers={"location": ways[0].path if next == "/" else next, CREDENTIAL: credential})


@pages.post("/sign-out", roles=(), open=True)
async def sign_out(ask: Ask) -> View | Reply:
    """End the session here and in the browser."""
    return go("/sign-in", said="signed_out")


def local_path(path: str | None) -> str:
    """A path of ours to go on to; whatever could lead elsewhere leads to the overview."""
    if path is None or not path.startswith("/") or path[1:2] in ("/", "\\") or not path.isprintable():
        return "/"
    return path if path.isascii() else "/"
