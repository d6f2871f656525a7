"""Issuers as the settings name them: errors name the missing or invalid member."""

from __future__ import annotations

from typing import Any

import pytest

from interlock.domain.issuer import JwtClaims, issuers
from interlock.errors import Invalid

GOOD: dict[str, Any] = {
    "issuer": "https://id.example.com",
    "audience": "interlock",
    "algorithms": ["RS256"],
    "jwks_uri": "https://id.example.com/keys",
}


def test_the_minimal_settings_of_an_issuer() -> None:
    (one,) = issuers([GOOD])
    assert (one.issuer, one.audience, one.algorithms) == (
        GOOD["issuer"],
        frozenset({"interlock"}),
        frozenset({"RS256"}),
    )
    assert (one.typ, one.claims, one.tenants, one.longest_life_seconds) == (
        frozenset({"at+jwt"}), JwtClaims(), None, 3600,
    )  # fmt: skip
    assert one.actor("ada") == "ada"


def test_all_settings_of_an_issuer() -> None:
    (one,) = issuers(
        [
            GOOD
            | {
                "audience": ["a", "b"],
                "typ": "JWT",
                "claims": {"tenant": "org", "roles": ["realm", "roles"]},
                "roles": {"ops": "operate"},
                "tenants": ["acme"],
                "name": "corp",
                "longest_life_seconds": 600,
            }
        ]
    )
    assert (one.audience, one.typ, one.tenants) == (frozenset("ab"), frozenset({"jwt"}), frozenset({"acme"}))
    assert (one.claims.tenant, one.claims.roles, one.claims.types) == (("org",), ("realm", "roles"), ("types",))
    assert one.roles_of(["ops", "admin"]) == {"operate"}
    assert (one.actor("ada"), one.longest_life_seconds) == ("corp/ada", 600)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"issuer": None}, "/issuer"),
        ({"issuer": ""}, "/issuer"),
        ({"issuer": 7}, "/issuer"),
        ({"audience": None}, "/audience"),
        ({"audience": []}, "/audience"),
        ({"audience": ["a", 1]}, "/audience"),
        ({"audience": ""}, "/audience"),
        ({"algorithms": None}, "/algorithms"),
        ({"algorithms": ["none"]}, "/algorithms"),
        ({"algorithms": ["HS256"]}, "/algorithms"),
        ({"algorithms": {"RS256": 1}}, "/algorithms"),
        ({"jwks_uri": None, "issuer": "corp"}, "/jwks_uri"),
        ({"jwks_uri": None, "issuer": "http://id.example.com"}, "/jwks_uri"),
        ({"jwks_uri": None, "issuer": "https://user@id.example.com"}, "/jwks_uri"),
        ({"jwks_uri": None, "issuer": "https://id.example.com/?realm=a"}, "/jwks_uri"),
        ({"jwks_uri": None, "issuer": "https://id.example.com#a"}, "/jwks_uri"),
        ({"jwks_uri": None, "issuer": "https://[id.example.com"}, "/jwks_uri"),
        ({"jwks": {"keys": []}}, "/jwks_uri"),
        ({"jwks_uri": None, "jwks": {}}, "/jwks"),
        ({"jwks_uri": None, "jwks": "keys"}, "/jwks"),
        ({"jwks_uri": "http://id.example.com/keys"}, "/jwks_uri"),
        ({"jwks_uri": "http://127.0.0.1.evil.example/keys"}, "/jwks_uri"),
        ({"jwks_uri": "file:///etc/keys"}, "/jwks_uri"),
        ({"jwks_uri": "https://user:secret@id.example.com/keys"}, "/jwks_uri"),
        ({"jwks_uri": "https:///keys"}, "/jwks_uri"),
        ({"typ": []}, "/typ"),
        ({"claims": []}, "/claims"),
        ({"claims": {"tenants": "t"}}, "/claims/tenants"),
        ({"claims": {"tenant": ""}}, "/claims/tenant"),
        ({"claims": {"tenant": []}}, "/claims/tenant"),
        ({"claims": {"tenant": ["a", 1]}}, "/claims/tenant"),
        ({"roles": ["read"]}, "/roles"),
        ({"roles": {"ops": "king"}}, "/roles/ops"),
        ({"tenants": []}, "/tenants"),
        ({"name": "a/b"}, "/name"),
        ({"name": ""}, "/name"),
        ({"longest_life_seconds": 0}, "/longest_life_seconds"),
        ({"longest_life_seconds": 86_401}, "/longest_life_seconds"),
        ({"longest_life_seconds": True}, "/longest_life_seconds"),
        ({"longest_life_seconds": "600"}, "/longest_life_seconds"),
        ({"algorithm": "RS256"}, "/algorithm"),
    ],
)
def test_an_invalid_setting_of_an_issuer_is_named_with_its_pointer(changes: dict[str, Any], pointer: str) -> None:
    table = {name: value for name, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(Invalid) as caught:
        issuers([GOOD | {"issuer": "https://fine.example.com"}, table])
    assert caught.value.pointer == f"/issuers/1{pointer}"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "[::1]:80"])
def test_plain_http_is_allowed_for_loopback_only(host: str) -> None:
    (one,) = issuers([GOOD | {"jwks_uri": f"http://{host}/keys"}])
    assert one.jwks_uri == f"http://{host}/keys"


@pytest.mark.parametrize("issuer", ["https://id.example.com/realm", "https://id.example.com/realm/"])
def test_the_keys_of_an_issuer_are_discovered_under_its_url(issuer: str) -> None:
    (one,) = issuers([{name: value for name, value in (GOOD | {"issuer": issuer}).items() if name != "jwks_uri"}])
    assert one.discovery_uri == "https://id.example.com/realm/.well-known/openid-configuration"
    assert one.discovered({"issuer": issuer, "jwks_uri": "https://keys.example.com/"}) == "https://keys.example.com/"
    assert issuers([GOOD])[0].discovery_uri is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"issuer": "https://id.example.com"},
        {"issuer": "https://id.example.com", "jwks_uri": 7},
        {"issuer": "https://id.example.com", "jwks_uri": "http://id.example.com/keys"},
        {"issuer": "https://id.example.com", "jwks_uri": "http://127.0.0.1/keys"},
        {"issuer": "https://id.example.com", "jwks_uri": "file:///etc/keys"},
        {"issuer": "https://id.example.com/", "jwks_uri": "https://id.example.com/keys"},
        {"issuer": "https://other.example.com", "jwks_uri": "https://id.example.com/keys"},
        {"jwks_uri": "https://id.example.com/keys"},
    ],
)
def test_a_document_of_another_issuer_or_with_an_unsafe_url_is_rejected(document: object) -> None:
    (one,) = issuers([{name: value for name, value in GOOD.items() if name != "jwks_uri"}])
    with pytest.raises(Invalid):
        one.discovered(document)


def test_several_issuers_need_unique_names() -> None:
    other = GOOD | {"issuer": "https://other.example.com"}
    assert len(issuers([GOOD | {"name": "one"}, other | {"name": "two"}])) == 2
    for pair in ([GOOD, other], [GOOD | {"name": "one"}, other], [GOOD | {"name": "x"}, other | {"name": "x"}]):
        with pytest.raises(Invalid, match="distinct name"):
            issuers(pair)
    with pytest.raises(Invalid, match="same issuer URL"):
        issuers([GOOD | {"name": "one"}, GOOD | {"name": "two"}])


def test_without_issuers_no_token_is_trusted() -> None:
    assert issuers([]) == ()
