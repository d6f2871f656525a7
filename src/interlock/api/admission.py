"""How much is taken on at a time: seats for requests, a share for each tenant, a budget for bodies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from interlock.api.options import Options
from interlock.api.problems import Refusal

STRANGERS: Final = ""  # whoever needs no credential; no tenant has this name


class Admission:
    """Counts what is under way; refuses at once rather than letting a line grow."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.active = 0
        self.waiting = 0
        self.arriving = 0  # apart from those who wait: however many do, they can still be told of their jobs
        self.body_bytes = 0
        self.by_tenant: Counter[tuple[str, str]] = Counter()  # and by what is counted

    def enter(self) -> Seat:
        self.active += 1
        return Seat(self)

    def check(self) -> None:
        if self.active > self._options.most_active:
            raise overloaded("too many requests are at work")

    def share(self, whole: int, tenant: str) -> int:
        """How much of the whole one tenant may have; strangers, who are nobody's guests, have less."""
        if not self._options.auth:
            return whole
        part = self._options.strangers_share if tenant == STRANGERS else self._options.tenant_share
        return max(1, round(whole * part))

    @property
    def options(self) -> Options:
        return self._options


class Seat:
    """One request's place, from its first header to its last byte."""

    def __init__(self, admission: Admission) -> None:
        self._of = admission
        self._tenant: str | None = None
        self._bytes = 0
        self._left = False

    def belongs_to(self, tenant: str) -> None:
        """Count the request for its tenant, so that one tenant's flood leaves seats to the others."""
        self._check_share(tenant, 1)
        self._tenant = tenant
        self._of.by_tenant[tenant, "active"] += 1

    def hold(self, size: int) -> None:
        """Account for bytes of a body, before they are read; no tenant's bodies take the room of all others."""
        budget = self._of.options.body_budget
        if self._of.body_bytes + size > budget:
            raise overloaded("too many bodies are being read")
        if self._of.by_tenant[self._whose, "bytes"] + size > self._of.share(budget, self._whose):
            raise overloaded("too many bodies of this tenant are being read")
        self._of.body_bytes += size
        self._count("bytes", size)
        self._bytes += size

    def check_waiting(self) -> None:
        """Refuse a request that could not wait."""
        most, whose = self._of.options.most_waiting, self._whose
        if self._of.waiting >= most or self._of.by_tenant[whose, "waiting"] >= self._of.share(most, whose):
            raise overloaded("too many requests are waiting")

    def check_arriving(self) -> None:
        """Refuse a body that there is no room to wait for."""
        most, whose = self._of.options.most_arriving, self._whose
        if self._of.arriving >= most or self._of.by_tenant[whose, "arriving"] >= self._of.share(most, whose):
            raise overloaded("too many request bodies are arriving")

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Wait without a seat among those at work: a long poll costs memory only."""
        self.check_waiting()
        self._of.waiting += 1
        self._move(1, "waiting")
        try:
            yield
        finally:
            self._of.waiting -= 1
            self._move(-1, "waiting")

    @contextmanager
    def arriving(self) -> Iterator[None]:
        """Wait for a body, however slowly it comes; then there is a seat, or the request is refused after all."""
        self.check_arriving()
        with self.aside():
            yield
        self._of.check()
        if self._tenant is not None:
            self._check_share(self._tenant, 0)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Leave the seat to others while a piece of a body comes, in the middle of which nobody is refused."""
        self._of.arriving += 1
        self._move(1, "arriving")
        try:
            yield
        finally:
            self._of.arriving -= 1
            self._move(-1, "arriving")

    def leave(self) -> None:
        """Give everything back; whoever has left already has nothing more to give."""
        if self._left:
            return
        self._left = True
        self._of.active -= 1
        if self._bytes:
            self._of.body_bytes -= self._bytes
            self._count("bytes", -self._bytes)
        if self._tenant is not None:
            self._count("active", -1)

    def _check_share(self, tenant: str, more: int) -> None:
        if self._of.by_tenant[tenant, "active"] + more > self._of.share(self._of.options.most_active, tenant):
            raise overloaded("too many requests of this tenant are at work")

    @property
    def _whose(self) -> str:
        return STRANGERS if self._tenant is None else self._tenant

    def _move(self, change: int, where: str) -> None:
        self._of.active -= change
        self._count(where, change)
        if self._tenant is not None:
            self._count("active", -change)

    def _count(self, what: str, change: int) -> None:
        key = (self._whose, what)
        self._of.by_tenant[key] += change
        if not self._of.by_tenant[key]:
            del self._of.by_tenant[key]  # as many keys as tenants with requests, never more


def overloaded(why: str) -> Refusal:
    return Refusal("overloaded", f"{why}; try again in a moment")
