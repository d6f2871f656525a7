"""The settings of sign-in, and which decisions need a fresh one."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.config import load
from interlock.domain.approval import RISKS, StepUp
from interlock.domain.principal import Person, Principal, local
from interlock.domain.retry import SECOND
from interlock.domain.sign_in import sign_in
from interlock.errors import FreshSignInRequired, Invalid

TABLE = {"issuer": "https://id.example.com", "client_id": "interlock"}
US = "https://jobs.example.com"
NOW = 1_800_000_000 * SECOND


def test_the_settings_of_a_provider_have_defaults() -> None:
    found = sign_in(TABLE, client_secret=None, public_url=US)
    assert found.redirect_uri == f"{US}/sign-in/callback"
    assert (found.provider.audience, found.provider.algorithms) == (frozenset({"interlock"}), frozenset({"RS256"}))
    assert (found.scopes, found.session_seconds, found.step_up) == (("openid", "profile", "email"), 28_800, None)
    assert "secret" not in repr(sign_in(TABLE, client_secret="secret", public_url=US))


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"client_id": ""}, "/sign_in/client_id"),
        ({"issuer": "http://id.example.com"}, "/sign_in/jwks_uri"),
        ({"audience": "other"}, "/sign_in/audience"),
        ({"jwks": {"keys": []}}, "/sign_in/jwks"),
        ({"jwks_uri": "https://id.example.com/keys"}, "/sign_in/jwks_uri"),
        ({"algorithms": ["none"]}, "/sign_in/algorithms"),
        ({"algorithms": ["HS256"]}, "/sign_in/algorithms"),
        ({"roles": {"staff": "king"}}, "/sign_in/roles/staff"),
        ({"scopes": ["profile"]}, "/sign_in/scopes"),
        ({"scopes": 1}, "/sign_in/scopes"),
        ({"session_seconds": 59}, "/sign_in/session_seconds"),
        ({"session_seconds": True}, "/sign_in/session_seconds"),
        ({"step_up_seconds": 3601}, "/sign_in/step_up_seconds"),
        ({"step_up_risk": "huge"}, "/sign_in/step_up_risk"),
        ({"tenant": ""}, "/sign_in/tenant"),
        ({"client_secret": "in the wrong place"}, "/sign_in/client_secret"),
    ],
)
def test_a_wrong_setting_is_named(change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        sign_in(TABLE | change, client_secret=None, public_url=US)
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("public_url", [None, "http://jobs.example.com"])
def test_people_sign_in_over_https_at_a_known_address(public_url: str | None) -> None:
    with pytest.raises(Invalid, match="public_url"):
        sign_in(TABLE, client_secret=None, public_url=public_url)


def test_settings_come_from_variables(tmp_path: Any) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    environ = {
        "INTERLOCK_AUTH": "tokens,oidc", "INTERLOCK_SIGN_IN": '{"issuer": "https://id.example.com"}',
        "INTERLOCK_SIGN_IN_CLIENT_SECRET_FILE": str(secret), "INTERLOCK_PUBLIC_URL": f"{US}/",
    }  # fmt: skip
    found = load({}, environ=environ, directory=tmp_path)
    assert (found.auth, found.public_url, found.sign_in_client_secret) == (("tokens", "oidc"), US, "s3cret")
    assert found.sign_in == {"issuer": "https://id.example.com"}


@pytest.mark.parametrize(
    ("environ", "pointer"),
    [
        ({"AUTH": "oidc"}, "/sign_in"),
        ({"SIGN_IN": "[]"}, "/sign_in"),
        ({"SIGN_IN": "{"}, "/sign_in"),
        ({"SIGN_IN_CLIENT_SECRET": " "}, "/sign_in_client_secret"),
        ({"PUBLIC_URL": "jobs.example.com"}, "/public_url"),
        ({"PUBLIC_URL": f"{US}/jobs"}, "/public_url"),
        ({"PUBLIC_URL": "https://user@jobs.example.com"}, "/public_url"),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Any, environ: dict[str, str], pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        load({}, environ={f"INTERLOCK_{name}": value for name, value in environ.items()}, directory=tmp_path)
    assert caught.value.pointer == pointer


def someone(signed_in: int | None) -> Principal:
    return Principal("t", "user:ada", frozenset({"approve"}), person=Person("Ada", None, signed_in))


@pytest.mark.parametrize("lowest", RISKS)
def test_a_risk_at_or_above_the_limit_needs_a_fresh_sign_in(lowest: str) -> None:
    rule = StepUp(lowest, 300)
    covered = [risk for risk in RISKS if rule.covers(risk)]
    assert covered == list(RISKS[RISKS.index(lowest) :])
    assert (rule.covers("CRITICAL"), rule.covers("of a new kind"), rule.covers(None)) == (True, True, False)


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (someone(NOW), True),
        (someone(NOW - 300 * SECOND), True),
        (someone(NOW - 301 * SECOND), False),
        (someone(None), False),
        (Principal("t", "token:1", frozenset({"approve"})), False),
        (None, False),
        (local("t"), True),
    ],
)
def test_only_a_person_who_has_just_signed_in_may_decide(who: Principal | None, may: bool) -> None:
    fault = StepUp("high", 300).refuse("high", who, NOW)
    assert (fault is None) is may
    assert fault is None or isinstance(fault, FreshSignInRequired)
