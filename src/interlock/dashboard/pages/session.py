"""Sign in with a token, and sign out."""

from __future__ import annotations

from typing import Final

from interlock.dashboard.http import PageRequest, PageResponse, Pages, View, redirect, show
from interlock.dashboard.navigation import dashboard_roles, navigation_for
from interlock.errors import Forbidden, Unauthenticated

pages = Pages()

CREDENTIAL: Final = "interlock-credential"  # internal response header, removed before sending


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
    return PageResponse(303, headers={"location": navigation[0].path if next == "/" else next, CREDENTIAL: credential})


@pages.post("/sign-out", roles=(), open=True)
async def sign_out(request: PageRequest) -> View | PageResponse:
    """End the session here and in the browser."""
    return redirect("/sign-in", notice="signed_out")


def local_path(path: str | None) -> str:
    """Return a path of this site; anything that could lead to another site becomes the overview."""
    if path is None or not path.startswith("/") or path[1:2] in ("/", "\\") or not path.isprintable():
        return "/"
    return path if path.isascii() else "/"
