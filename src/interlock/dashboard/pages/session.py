"""Signing in with a token, and out again."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.web import Ask, Pages, Reply, View, go, show
from interlock.errors import Unauthenticated

pages = Pages()

CREDENTIAL: Final = "interlock-credential"  # from here to the application around the pages, never to a browser


@pages.get("/sign-in", open=True)
async def sign_in_page(ask: Ask) -> View | Reply:
    """Ask for a token."""
    return show("sign_in.html", next=local_path(ask.query.one("next")), wrong=False)


@pages.post("/sign-in", roles=(), open=True, takes_a_secret=True)
async def sign_in(ask: Ask) -> View | Reply:
    """Begin a session, under a cookie that nobody had before."""
    next, credential = local_path(ask.form.one("next")), ask.form.one("token") or ""
    try:
        await ask.engine.tokens.authenticate(credential)
    except Unauthenticated:
        return show("sign_in.html", status=401, next=next, wrong=True)
    return Reply(303, headers={"location": next, CREDENTIAL: credential})


@pages.post("/sign-out", roles=(), open=True)
async def sign_out(ask: Ask) -> View | Reply:
    """End the session here and in the browser."""
    return go("/sign-in", said="signed_out")


def local_path(path: str | None) -> str:
    """A path of ours to go on to; whatever could lead elsewhere leads to the overview."""
    if path is None or not path.startswith("/") or path[1:2] in ("/", "\\") or not path.isprintable():
        return "/"
    return path if path.isascii() else "/"
