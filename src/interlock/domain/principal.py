"""Principals: authenticated callers and their actor names in the history."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain.policy import ClaimFilter, Policy, narrow
from interlock.errors import Forbidden, Invalid

ROLES: Final = frozenset({"read", "produce", "work", "operate", "approve", "admin"})
DEFAULT_TENANT: Final = "default"


class Person(NamedTuple):
    """A person behind a principal: name and e-mail address, and when an identity provider authenticated them."""

    name: str | None = None
    email: str | None = None
    authenticated_at: int | None = None


class Principal(NamedTuple):
    """An authenticated caller: its tenant, its roles and its actor name in the history.

    The credential of a worker also names the worker. Without a policy, claims are not restricted.
    """

    tenant: str
    actor: str
    roles: frozenset[str]
    worker: str | None = None
    policy: Policy | None = None
    unchecked: bool = False  # authentication is off: the caller is unknown and may do everything
    subject: str | None = None  # the issuer's subject behind a worker, which is the actor of its other tokens
    person: Person | None = None  # who signed in with OpenID Connect

    def may(self, role: str) -> bool:
        return role in self.roles

    def need(self, role: str) -> None:
        """Reject a caller without the role."""
        if role not in self.roles:
            raise Forbidden(f"this needs the role {role}")

    @property
    def asks_as(self) -> str:
        """The actor that requests an approval, and therefore cannot decide it, even with another credential."""
        return self.actor if self.subject is None else self.subject

    def works_as(self, asked: str | None) -> str:
        """Return the worker name to use: that of the credential, optionally with /instance; any if it has none."""
        if self.worker is None:
            if asked is None:
                raise Invalid("worker is missing: name the worker", pointer="/worker")
            return asked
        if asked is None or asked == self.worker:
            return self.worker
        own = f"{self.worker}/"
        if asked.startswith(own) and asked != own:
            return asked
        raise Forbidden(f"this credential belongs to worker {self.worker}")

    def narrowed(self, ask: ClaimFilter) -> ClaimFilter:
        """Narrow a claim to what the credential allows."""
        return ask if self.policy is None else narrow(ask, self.policy)


def user(name: str) -> str:
    return f"user:{name}"


def worker(name: str) -> str:
    return f"worker:{name}"


def token(name: str) -> str:
    return f"token:{name}"


def bearer(name: str) -> str:
    return f"bearer:{name}"


def system(task: str) -> str:
    return f"system:{task}"


def local(tenant: str = DEFAULT_TENANT) -> Principal:
    """Return the principal of an embedded engine, which may do everything."""
    return Principal(tenant, user("local"), ROLES, unchecked=True)
