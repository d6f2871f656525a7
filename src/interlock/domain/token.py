"""Bearer tokens: their format, their valid roles and restrictions, and the principals they authenticate."""

from __future__ import annotations

import hashlib
import hmac
import re
import string
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from interlock.domain import policy, principal
from interlock.domain.json_text import is_visible_name
from interlock.domain.policy import ANY, Policy
from interlock.domain.principal import ROLES, Principal
from interlock.errors import Invalid

PREFIX: Final = "ilk_"
SECRET_BYTES: Final = 32
MAX_LIFE_SECONDS: Final = 10 * 365 * 86_400
WORKER_ROLES: Final = frozenset({"work", "produce", "read"})

_DIGITS: Final = string.digits + string.ascii_uppercase + string.ascii_lowercase
_SECRET_DIGITS: Final = 43  # 62 ** 43 > 2 ** 256
_CHECK_DIGITS: Final = 6  # 62 ** 6 > 2 ** 32
LENGTH: Final = len(PREFIX) + _SECRET_DIGITS + _CHECK_DIGITS
_OTHER_PREFIX: Final = re.compile(r"[a-z]{2,8}_")  # of tokens for protocol adapters
_OTHER: Final = re.compile(r"[a-z]{2,8}_[0-9a-f]{48}")


class NewToken(NamedTuple):
    """A token to store: the hash of its text, never the text itself."""

    id: str
    hash: bytes
    roles: tuple[str, ...]
    created_by: str
    description: str | None = None
    worker_id: str | None = None
    types: tuple[str, ...] | None = None
    repositories: tuple[str, ...] | None = None
    capabilities: tuple[str, ...] = ()
    expires_in_seconds: float | None = None
    key: str | None = None


class Token(NamedTuple):
    """A stored token, without its text; None for types or repositories means any."""

    tenant: str
    id: str
    description: str | None
    roles: tuple[str, ...]
    worker_id: str | None
    types: tuple[str, ...] | None
    repositories: tuple[str, ...] | None
    capabilities: tuple[str, ...]
    key: str | None
    created_at: int
    created_by: str
    expires_at: int | None
    last_used_at: int | None
    revoked_at: int | None
    revoked_by: str | None

    def lives(self, now: int) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def principal(self) -> Principal:
        """Return the principal of this token; a `work` token without a worker ID uses the token ID as worker name."""
        actor = principal.token(self.id) if self.worker_id is None else principal.worker(self.worker_id)
        worker = self.worker_id or (self.id if "work" in self.roles else None)
        allowed = Policy(_set(self.types), _set(self.repositories), frozenset(self.capabilities))
        return Principal(self.tenant, actor, frozenset(self.roles), worker, allowed)


class CreatedToken(NamedTuple):
    """A new token and its secret, which is shown only once."""

    token: Token
    text: str

    def __repr__(self) -> str:
        return f"CreatedToken({self.token.id})"


class TokenUse(NamedTuple):
    """A stored token that a caller presented, its stored hash, and the time of the database."""

    token: Token
    hash: bytes
    now: int

    def admits(self, hash: bytes) -> bool:
        """Return whether a text with this hash authenticates its bearer now."""
        return hmac.compare_digest(self.hash, hash) and self.token.lives(self.now)


def spell(secret: bytes) -> str:
    """Return the text of a token: a prefix for secret scanners, 256 bits, and a checksum that detects typos."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a token is made of {SECRET_BYTES} random bytes")
    body = PREFIX + _base62(int.from_bytes(secret), _SECRET_DIGITS)
    return body + _checksum(body)


def is_whole(text: str) -> bool:
    """Return whether a text is a well-formed token: not truncated, extended or mistyped; case-sensitive."""
    return _OTHER.fullmatch(text) is not None or (
        len(text) == LENGTH
        and text.isascii()
        and text.startswith(PREFIX)
        and hmac.compare_digest(text[-_CHECK_DIGITS:], _checksum(text[:-_CHECK_DIGITS]))
    )


def is_own(text: str) -> bool:
    """Return whether a credential has the prefix of a token of this service, as opposed to a JWT."""
    return _OTHER_PREFIX.match(text) is not None


def fingerprint(text: str) -> bytes:
    """Return the SHA-256 of a token's text, the only form in which it is stored."""
    return hashlib.sha256(text.encode()).digest()


def roles(values: Iterable[str], *, worker_id: str | None) -> tuple[str, ...]:
    """Return the roles sorted, or raise Invalid if they cannot be combined."""
    given = policy.names(values, what="roles")
    if not given:
        raise Invalid("a token needs at least one role", pointer="/roles")
    if unknown := sorted(set(given) - ROLES):
        raise Invalid(f"{unknown[0]!r} is not a role; there are {', '.join(sorted(ROLES))}", pointer="/roles")
    if "work" not in given:
        if worker_id is not None:
            raise Invalid("a worker's token needs the role work", pointer="/roles")
    elif excess := sorted(set(given) - WORKER_ROLES):
        # With more roles a worker could decide its own approvals, if only through a token that it creates.
        raise Invalid(f"a token that may work may also produce and read, but not {excess[0]}", pointer="/roles")
    return given


def worker_id(value: str | None) -> str | None:
    """Return a worker name without a slash, which separates it from the instance in a claim."""
    if value is None:
        return None
    name = value.strip()
    if not is_visible_name(name) or "/" in name:
        raise Invalid("worker_id must be 1 to 200 visible characters without a slash", pointer="/worker_id")
    return name


def types(values: Sequence[str] | None) -> tuple[str, ...] | None:
    return _any_or_names(values, "types", str.strip)


def repositories(values: Sequence[str] | None) -> tuple[str, ...] | None:
    try:
        return _any_or_names(values, "repositories", policy.repository)
    except Invalid as error:
        error.pointer = "/repositories"
        raise


def capabilities(values: Sequence[str] | None) -> tuple[str, ...]:
    """Return the capabilities of a worker; absent means none, and there is no wildcard."""
    if values is not None and ANY in values:
        raise Invalid("capabilities must not contain *: list each capability", pointer="/capabilities")
    return policy.names(values or (), what="capabilities")


def _any_or_names(values: Sequence[str] | None, what: str, spelling: Callable[[str], str]) -> tuple[str, ...] | None:
    if values is None or list(values) == [ANY]:
        return None
    if ANY in values:
        raise Invalid(f"{what} must be * or a list of names, not both", pointer=f"/{what}")
    return policy.names((spelling(value) for value in values), what=what)


def _set(values: tuple[str, ...] | None) -> frozenset[str] | None:
    return None if values is None else frozenset(values)


def _checksum(body: str) -> str:
    return _base62(zlib.crc32(body.encode()), _CHECK_DIGITS)


def _base62(number: int, digits: int) -> str:
    spelled = []
    for _ in range(digits):
        number, digit = divmod(number, len(_DIGITS))
        spelled.append(_DIGITS[digit])
    return "".join(reversed(spelled))
