"""Claims of codeQ credentials: subject, scopes, commands and tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from interlock.domain import policy, principal, token
from interlock.domain.json_text import is_visible_name
from interlock.domain.policy import ANY, Policy
from interlock.domain.principal import Principal
from interlock.errors import Invalid

ADMIN_SCOPE: Final = "codeq:admin"
ADMIN: Final = "ADMIN"
WORKER_SCOPES: Final = frozenset(
    f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")
)
TENANT_CLAIMS: Final = ("tid", "tenantId", "tenant_id", "organizationId", "organization_id")
SUBJECT_TENANT: Final = "codeq-sub:"  # a tenant claim cannot contain a colon, so it cannot name such a tenant

_TENANT: Final = re.compile(r"[a-z][a-z0-9-]{1,62}")
_PRODUCER: Final = frozenset({"produce", "read"})
_ADMIN: Final = frozenset({"operate", "admin"})


class AnyCase(frozenset[str]):
    """The commands of a codeQ credential: they allow types in every spelling, unlike the types of our tokens."""


class CodeqClaims(NamedTuple):
    """The claims of a valid credential; `raw` has all of them."""

    subject: str
    scopes: frozenset[str]
    event_types: tuple[str, ...]
    raw: Mapping[str, Any]

    @classmethod
    def of_token(cls, raw: Mapping[str, Any]) -> CodeqClaims:
        """Read the claims of a signed token."""
        subject, scope, types = raw.get("sub"), raw.get("scope"), raw.get("eventTypes")
        return cls(
            subject if isinstance(subject, str) else "",
            frozenset(scope.split()) if isinstance(scope, str) else frozenset(),
            tuple(one for one in types if isinstance(one, str)) if isinstance(types, list) else (),
            raw,
        )

    @property
    def is_admin(self) -> bool:
        role = self.raw.get("role")
        return ADMIN_SCOPE in self.scopes or (isinstance(role, str) and role.upper() == ADMIN)

    @property
    def is_worker(self) -> bool:
        """Whether the claims list commands and scopes, as those of a worker must."""
        return bool(self.event_types and self.scopes)

    def as_worker(self) -> CodeqClaims:
        """The same subject with every command and worker scope."""
        return self._replace(scopes=WORKER_SCOPES, event_types=(ANY,))

    def tenant(self, *, from_subject: bool) -> str | None:
        """The tenant, if all tenant claims are valid and equal, else None."""
        given = [self.raw[name] for name in TENANT_CLAIMS if name in self.raw]
        if not given:
            named = SUBJECT_TENANT + self.subject
            return named if from_subject and self.subject and is_visible_name(named) else None
        first = given[0]
        if not isinstance(first, str) or not _TENANT.fullmatch(first) or any(one != first for one in given):
            return None
        return first

    def producer(self, tenant: str) -> Principal | None:
        """The producer or admin, or None if the subject is not a valid name."""
        if not is_visible_name(self.subject):
            return None
        roles = _PRODUCER | _ADMIN if self.is_admin else _PRODUCER
        return Principal(tenant, principal.user(f"codeq/{self.subject}"), roles, None, Policy())

    def worker(self, tenant: str) -> Principal | None:
        """The worker named by the subject, or None if that or a command is not a valid name."""
        try:
            name = token.worker_id(self.subject)
            types = None if ANY in self.event_types else AnyCase(policy.names(self.event_types, what="eventTypes"))
        except Invalid:
            return None
        assert name is not None
        return Principal(tenant, principal.worker(name), frozenset({"work"}), name, Policy(types))
