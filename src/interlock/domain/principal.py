"""Who acts: the caller behind a request, and the name history keeps of them."""

from __future__ import annotations

from typing import Final, NamedTuple

ROLES: Final = frozenset({"read", "produce", "work", "operate", "approve", "admin"})
DEFAULT_TENANT: Final = "default"


class Principal(NamedTuple):
    """A caller: whose tenant they belong to, what they may do, and how history names them."""

    tenant: str
    actor: str
    roles: frozenset[str]

    def may(self, role: str) -> bool:
        return role in self.roles


def user(name: str) -> str:
    return f"user:{name}"


def worker(name: str) -> str:
    return f"worker:{name}"


def token(name: str) -> str:
    return f"token:{name}"


def bearer(name: str) -> str:
    return f"bearer:{name}"


def system(chore: str) -> str:
    return f"system:{chore}"


def local(tenant: str = DEFAULT_TENANT) -> Principal:
    """The caller of an embedded engine, who may do everything."""
    return Principal(tenant, user("local"), ROLES)
