"""Idempotency keys of children: the same in every run of the parent, so that a later run finds its children."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote, unquote

from interlock.domain.json_text import is_visible_name
from interlock.sdk.replay import check_name


class ChildKeys:
    """Numbers the children of one run, and those of each of its steps separately: a later run skips a saved step."""

    def __init__(self, job_id: str) -> None:
        self._root = _Scope(self, f"child/{job_id}")
        self._job_id = job_id
        self.is_used = False

    def next(self, name: str | None) -> str:
        """Return the key of the next child, by its name or else by its number."""
        self.is_used = True
        scope = _scope.get()
        if scope is None or scope.owner is not self:  # the second: a run inside the run of another job
            scope = self._root
        key = scope.next(None if name is None else check_name(name, "a child"))
        # A long name is part of the key by its digest.
        return key if is_visible_name(key) else f"child/{self._job_id}/{hashlib.sha256(key.encode()).hexdigest()}"

    def is_in_step(self) -> bool:
        """Return whether the caller is part of a step, which a later run skips."""
        scope = _scope.get()
        return scope is not None and scope.owner is self

    @contextmanager
    def of_step(self, name: str, occurrence: int) -> Iterator[None]:
        """Number the children of one attempt of a step from 1."""
        before = _scope.get()
        _scope.set(_Scope(self, f"step-child/{self._job_id}/{quote(name, safe='')}/{occurrence}"))
        try:
            yield
        finally:
            _scope.set(before)

    def place(self, key: str) -> tuple[str, int]:
        """Return the name and the occurrence in a key, for messages."""
        name, _, occurrence = key.partition(f"/{self._job_id}/")[2].rpartition("/")
        return unquote(name) or "child", int(occurrence) if occurrence.isdecimal() else 1


class _Scope:
    """Counts the children of a run or of a step, each name separately."""

    def __init__(self, owner: ChildKeys, prefix: str) -> None:
        self.owner = owner
        self._prefix = prefix
        self._counts: Counter[str | None] = Counter()

    def next(self, name: str | None) -> str:
        self._counts[name] += 1
        middle = "" if name is None else f"/{quote(name, safe='')}"
        return f"{self._prefix}{middle}/{self._counts[name]}"


_scope: ContextVar[_Scope | None] = ContextVar("interlock_step", default=None)
