"""Who acts: the caller behind a request, and the name history keeps of them."""

from __future__ import annotations

from typing import Final, NamedTuple

from interlock.domain.policy import ClaimFilter, Policy, narrow
from interlock.errors import Forbidden, Invalid

ROLES: Final = frozenset({"read", "produce", "work", "operate", "approve", "admin"})
DEFAULT_TENANT: Final = "default"


class Principal(NamedTuple):
    """A caller: whose tenant they belong to, what they may do, and how history names them.

    A worker's credential also says which worker this is. Without a policy nothing narrows what they claim.
    """

    tenant: str
    actor: str
    roles: frozenset[str]
    worker: str | None = None
    policy: Policy | None = None
    unchecked: bool = False  # auth is off: nobody knows who this is, and nothing is kept from them
    subject: str | None = None  # whom an issuer names behind a worker: the actor they are with another of its tokens

    def may(self, role: str) -> bool:
        return role in self.roles

    def need(self, role: str) -> None:
        """Refuse a caller who lacks a role."""
        if role not in self.roles:
            raise Forbidden(f"this needs the role {role}")

    @property
    def asks_as(self) -> str:
        """Who asks when a gate is opened, and therefore cannot answer, also with another credential."""
        return self.actor if self.subject is None else self.subject

    def works_as(self, asked: str | None) -> str:
        """The name under which a caller works: their credential's own, or that plus /instance; any if it names none."""
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
        """An ask cut down to what the credential allows."""
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
    """The caller of an embedded engine, who may do everything."""
    return Principal(tenant, user("local"), ROLES, unchecked=True)
