"""External JWT issuers: which of their tokens are accepted, and how claims map to principals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from interlock.domain.json_text import is_visible_name
from interlock.domain.principal import ROLES
from interlock.errors import Invalid

# Asymmetric algorithms and their key types only: with a shared secret this server could sign tokens too.
ALGORITHMS: Final[Mapping[str, str]] = {
    **{f"{family}{size}": "RSA" for family in ("RS", "PS") for size in (256, 384, 512)},
    **{f"ES{size}": "EC" for size in (256, 384, 512)},
    "Ed25519": "OKP",
}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
MAX_LIFE_SECONDS: Final = 86_400
DISCOVERY: Final = "/.well-known/openid-configuration"

Path = tuple[str, ...]


class JwtClaims(NamedTuple):
    """Paths of the claims in a token, from its outermost object."""

    tenant: Path = ("tenant",)
    roles: Path = ("roles",)
    worker_id: Path = ("worker_id",)
    types: Path = ("types",)
    repositories: Path = ("repositories",)
    capabilities: Path = ("capabilities",)
    name: Path = ("name",)
    email: Path = ("email",)


class Issuer(NamedTuple):
    """A trusted issuer and the tokens that are accepted from it."""

    issuer: str
    audience: frozenset[str]
    algorithms: frozenset[str]
    jwks_uri: str | None = None
    jwks: Mapping[str, Any] | None = None
    typ: frozenset[str] = frozenset({"at+jwt"})
    claims: JwtClaims = JwtClaims()
    roles: Mapping[str, str] | None = None
    tenants: frozenset[str] | None = None
    name: str | None = None
    longest_life_seconds: int = 3600

    @property
    def discovery_uri(self) -> str | None:
        """The discovery document of the issuer, if the settings contain no keys."""
        return None if self.has_keys else self.issuer.removesuffix("/") + DISCOVERY

    @property
    def has_keys(self) -> bool:
        return self.jwks_uri is not None or self.jwks is not None

    def discovered(self, document: object) -> str:
        """Return the JWKS address in the discovery document; a document of another issuer is rejected."""
        found = document if isinstance(document, Mapping) else {}
        if found.get("issuer") != self.issuer:
            raise Invalid("this is the document of another issuer", pointer="/issuer")
        return address(found.get("jwks_uri"), "jwks_uri", loopback=urlsplit(self.issuer).hostname in LOOPBACK)

    def actor(self, subject: str) -> str:
        """Return the history actor for a subject of this issuer."""
        return subject if self.name is None else f"{self.name}/{subject}"

    def roles_of(self, words: Sequence[str]) -> frozenset[str]:
        """Map the issuer's role names to roles; unknown names are ignored."""
        if self.roles is None:
            return ROLES.intersection(words)
        return frozenset(self.roles[word] for word in words if word in self.roles)


def issuers(tables: Sequence[Mapping[str, Any]]) -> tuple[Issuer, ...]:
    """Return the issuers of the settings, or raise Invalid with a pointer to the error."""
    found = []
    for i, table in enumerate(tables):
        try:
            found.append(issuer(table))
        except Invalid as error:
            error.pointer = f"/issuers/{i}{error.pointer}"
            raise
    if len({one.issuer for one in found}) < len(found):
        raise Invalid("two issuers have the same issuer URL", pointer="/issuers")
    if len(found) > 1 and len({one.name for one in found} - {None}) < len(found):
        # The same subject at two issuers is two principals; history must distinguish them.
        raise Invalid("with several issuers each needs a distinct name", pointer="/issuers")
    return tuple(found)


def issuer(table: Mapping[str, Any]) -> Issuer:
    if unknown := sorted(table.keys() - set(Issuer._fields)):
        raise Invalid(f"an issuer has no setting {unknown[0]!r}", pointer=f"/{unknown[0]}")
    values: dict[str, Any] = {
        "issuer": _text(table.get("issuer"), "issuer"),
        "audience": _texts(table.get("audience"), "audience"),
        "algorithms": _algorithms(table.get("algorithms")),
        "claims": _claims(table.get("claims", {})),
        "roles": _roles(table.get("roles")),
        **_keys(table),
    }
    if "typ" in table:
        values["typ"] = frozenset(word.lower() for word in _texts(table["typ"], "typ", empty=True))
    if "tenants" in table:
        values["tenants"] = _texts(table["tenants"], "tenants")
    if "name" in table:
        values["name"] = _name(table["name"])
    if "longest_life_seconds" in table:
        values["longest_life_seconds"] = _life(table["longest_life_seconds"])
    return Issuer(**values)


def _algorithms(value: object) -> frozenset[str]:
    given = _texts(value, "algorithms")
    if unknown := sorted(given - ALGORITHMS.keys()):
        raise Invalid(
            f"{unknown[0]!r} is not a supported algorithm: use one of {', '.join(ALGORITHMS)}", pointer="/algorithms"
        )
    return given


def _keys(table: Mapping[str, Any]) -> dict[str, Any]:
    uri, jwks = table.get("jwks_uri"), table.get("jwks")
    if uri is not None and jwks is not None:
        raise Invalid("an issuer has either jwks_uri or jwks", pointer="/jwks_uri")
    if uri is not None:
        return {"jwks_uri": address(uri, "jwks_uri")}
    if jwks is None:
        _check_discoverable(table["issuer"])
        return {}
    if not isinstance(jwks, Mapping) or not isinstance(jwks.get("keys"), list):
        raise Invalid("jwks must be a key set: a table with a list of keys", pointer="/jwks")
    return {"jwks": jwks}


def _check_discoverable(issuer: str) -> None:
    """Reject an issuer whose name is not a URL: discovery needs one."""
    try:
        address(issuer, "issuer")
    except Invalid:
        raise Invalid("an issuer without an https address needs jwks_uri or jwks", pointer="/jwks_uri") from None
    if not set("?#").isdisjoint(issuer):
        raise Invalid("an issuer with a query or a fragment needs jwks_uri or jwks", pointer="/jwks_uri")


def address(value: object, what: str, *, loopback: bool = True) -> str:
    """Return an address that keys may be fetched from: https, or plain http on the loopback interface."""
    text = _text(value, what)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise Invalid(f"{what} is not a valid address", pointer=f"/{what}") from None
    if not (parts.scheme == "https" or (loopback and parts.scheme == "http" and parts.hostname in LOOPBACK)):
        raise Invalid(f"{what} must be an https address", pointer=f"/{what}")
    if not parts.hostname or parts.username is not None:
        raise Invalid(f"{what} must name a host and no user", pointer=f"/{what}")
    return text


def _claims(value: object) -> JwtClaims:
    if not isinstance(value, Mapping):
        raise Invalid("claims must be a table", pointer="/claims")
    if unknown := sorted(value.keys() - set(JwtClaims._fields)):
        raise Invalid(f"there is no claim for {unknown[0]!r}", pointer=f"/claims/{unknown[0]}")
    paths = {}
    for name, path in value.items():
        steps = [path] if isinstance(path, str) else path
        if not isinstance(steps, list) or not steps or not all(isinstance(step, str) and step for step in steps):
            raise Invalid(
                f"claims.{name} must be the name of a claim, or a list of names that lead to it",
                pointer=f"/claims/{name}",
            )
        paths[name] = tuple(steps)
    return JwtClaims(**paths)


def _roles(value: object) -> Mapping[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Invalid("roles must be a table from the issuer's words to roles", pointer="/roles")
    for word, role in value.items():
        if role not in ROLES:
            raise Invalid(f"{role!r} is not a role; there are {', '.join(sorted(ROLES))}", pointer=f"/roles/{word}")
    return dict(value)


def _name(value: object) -> str:
    name = _text(value, "name")
    if not is_visible_name(name) or "/" in name:
        raise Invalid("name must be 1 to 200 visible characters without a slash", pointer="/name")
    return name


def _life(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_LIFE_SECONDS:
        raise Invalid(f"longest_life_seconds must be from 1 to {MAX_LIFE_SECONDS}", pointer="/longest_life_seconds")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise Invalid(f"{what} is missing or invalid: expected a non-empty string", pointer=f"/{what}")
    return value


def _texts(value: object, what: str, *, empty: bool = False) -> frozenset[str]:
    """Return one text or a list as a set; with `empty`, an empty text stands for an absent one."""
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and (one or empty) for one in given):
        raise Invalid(f"{what} is missing or invalid: expected a string or a list of strings", pointer=f"/{what}")
    return frozenset(given)
