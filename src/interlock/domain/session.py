"""Sessions of the dashboard, and the persons who signed in with OpenID Connect."""

from __future__ import annotations

from typing import NamedTuple

from interlock.domain.policy import Policy
from interlock.domain.principal import Person, Principal


class NewSession(NamedTuple):
    """A session to store: the hash of its secret, never the secret itself."""

    id: str
    hash: bytes
    actor: str
    life_seconds: float
    roles: tuple[str, ...] | None = None  # None: those of the token in the cookie
    person: Person | None = None


class Session(NamedTuple):
    """A stored session."""

    tenant: str
    id: str
    actor: str
    roles: tuple[str, ...] | None
    authenticated_at: int | None
    created_at: int
    expires_at: int


class SessionUse(NamedTuple):
    """A session that a browser presented, the name and e-mail address of its person, and the time of the database."""

    session: Session
    name: str | None
    email: str | None
    now: int

    @property
    def lives(self) -> bool:
        return self.now < self.session.expires_at

    @property
    def principal(self) -> Principal | None:
        """The person who signed in, or None if the token in the cookie determines the principal."""
        found = self.session
        if found.roles is None:
            return None
        person = Person(self.name, self.email, found.authenticated_at)
        return Principal(found.tenant, found.actor, frozenset(found.roles), None, Policy(), person=person)


class KnownPerson(NamedTuple):
    """A person who has signed in, by actor."""

    actor: str
    name: str | None
    email: str | None
    signed_in_at: int
