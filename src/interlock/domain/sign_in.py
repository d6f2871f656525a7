"""Sign-in with OpenID Connect: its settings, and what the provider's documents and claims must contain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from interlock.domain.approval import RISKS, StepUp
from interlock.domain.issuer import LOOPBACK, Issuer, address, issuer
from interlock.errors import Invalid

DEFAULT_SCOPES: Final = ("openid", "profile", "email")
MAX_SESSION_SECONDS: Final = 86_400
_OWN: Final = ("client_id", "scopes", "session_seconds", "step_up_risk", "step_up_seconds", "tenant", "label")


class Endpoints(NamedTuple):
    """The addresses in the provider's discovery document."""

    authorization: str
    token: str
    userinfo: str | None
    end_session: str | None
    names_issuer: bool  # in the response to the browser, so that a response of another provider is recognized


class SignIn(NamedTuple):
    """The identity provider of the dashboard, and how long its sign-ins are valid."""

    provider: Issuer
    client_id: str
    client_secret: str | None  # None: a public client, which only PKCE protects
    public_url: str
    scopes: tuple[str, ...] = DEFAULT_SCOPES
    tenant: str | None = None  # of everyone, if the claims name none
    label: str = "OpenID Connect"
    session_seconds: int = 28_800
    step_up_risk: str | None = None
    step_up_seconds: int = 300

    def __repr__(self) -> str:
        return f"SignIn({self.provider.issuer})"

    @property
    def redirect_uri(self) -> str:
        return f"{self.public_url}/sign-in/callback"

    def endpoints(self, document: object) -> Endpoints:
        """Return the addresses of the discovery document; a document of another issuer is rejected."""
        found = document if isinstance(document, Mapping) else {}
        self.provider.discovered(found)  # checks the issuer
        loopback = urlsplit(self.provider.issuer).hostname in LOOPBACK

        def endpoint(name: str) -> str:
            return address(found.get(f"{name}_endpoint"), f"{name}_endpoint", loopback=loopback)

        userinfo, end_session = (
            endpoint(name) if found.get(f"{name}_endpoint") else None for name in ("userinfo", "end_session")
        )
        names_issuer = found.get("authorization_response_iss_parameter_supported") is True
        return Endpoints(endpoint("authorization"), endpoint("token"), userinfo, end_session, names_issuer)

    @property
    def step_up(self) -> StepUp | None:
        return None if self.step_up_risk is None else StepUp(self.step_up_risk, self.step_up_seconds)


def sign_in(table: Mapping[str, Any], *, client_secret: str | None, public_url: str | None) -> SignIn:
    """Return the provider of the settings, or raise Invalid with a pointer to the error."""
    if public_url is None:
        raise Invalid(
            "sign_in needs public_url: the address at which browsers reach the dashboard", pointer="/public_url"
        )
    address(public_url, "public_url")
    own = {name: table[name] for name in _OWN if name in table}
    rest = {name: value for name, value in table.items() if name not in _OWN}
    try:
        client_id = _text(own.pop("client_id", None), "client_id")
        for name in ("jwks", "jwks_uri"):
            if name in rest:
                raise Invalid(f"sign_in has no {name}: it finds the keys by discovery", pointer=f"/{name}")
        if "audience" in rest:
            raise Invalid("sign_in has no audience: it is the client_id", pointer="/audience")
        defaults = {"algorithms": ["RS256"], "typ": ["", "jwt"], "longest_life_seconds": MAX_SESSION_SECONDS}
        provider = issuer({**defaults, **rest, "audience": client_id})
        return SignIn(provider, client_id, client_secret, public_url, **_checked(own))
    except Invalid as error:
        error.pointer = f"/sign_in{error.pointer}"
        raise


def _checked(own: dict[str, Any]) -> dict[str, Any]:
    for name in ("tenant", "label"):
        if name in own:
            _text(own[name], name)
    for name, most in (("session_seconds", MAX_SESSION_SECONDS), ("step_up_seconds", 3600)):
        value = own.get(name, 60)
        if not isinstance(value, int) or isinstance(value, bool) or not 60 <= value <= most:
            raise Invalid(f"{name} is {value!r}: expected 60 to {most}", pointer=f"/{name}")
    if "scopes" in own:
        scopes = own["scopes"].split() if isinstance(own["scopes"], str) else own["scopes"]
        if not isinstance(scopes, list) or "openid" not in scopes or not all(isinstance(one, str) for one in scopes):
            raise Invalid("scopes must be a list of words with openid", pointer="/scopes")
        own["scopes"] = tuple(scopes)
    if own.get("step_up_risk") is not None and own["step_up_risk"] not in RISKS:
        raise Invalid(f"step_up_risk must be one of {', '.join(RISKS)}", pointer="/step_up_risk")
    return own


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid(f"{what} is missing or invalid: expected a non-empty string", pointer=f"/{what}")
    return value
