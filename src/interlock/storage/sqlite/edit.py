"""Edits of waiting jobs on SQLite."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from interlock.domain.job import NewJob
from interlock.domain.transition import JobState, Transition
from interlock.storage.sql_files import load
from interlock.storage.sqlite.connection import Connection
from interlock.storage.sqlite.eligibility_keys import EligibilityKeys

_SQL: Final = load("interlock.storage.sqlite", "edit.sql")


def with_what_can_be_edited(connection: Connection, tenant: str, jobs: Sequence[JobState]) -> dict[str, JobState]:
    """Return the job states with the columns that only an edit reads."""
    rows = connection.rows(_SQL["editable"], {"tenant": tenant, "ids": json.dumps([job.id for job in jobs])})
    facts = {row[0]: row for row in rows}
    return {job.id: job._replace(priority=facts[job.id][1], tags=_names(facts[job.id][2])) for job in jobs}


def write(connection: Connection, eligibility_keys: EligibilityKeys, tenant: str, change: Transition, seq: int) -> None:
    """Write the edited values and the eligibility key that matches the new priority."""
    edited = change.edited
    assert edited is not None
    ((_, _, _, type, requires, repository, affinity_key, limits),) = connection.rows(
        _SQL["editable"], {"tenant": tenant, "ids": json.dumps([change.id])}
    )
    like = NewJob(
        change.id, type, priority=edited.priority, requires=_names(requires), repository=repository,
        affinity_key=affinity_key, limits=limits,
    )  # fmt: skip
    (eligibility_key,) = eligibility_keys.of(connection, [like])
    connection.db.execute(
        _SQL["edit"],
        edited._asdict()
        | {
            "tags": json.dumps(edited.tags),
            "eligibility_key": eligibility_key.no,
            "base": eligibility_key.base,
            "across_repositories": eligibility_key.across_repositories,
            "across_keys": eligibility_key.across_keys,
            "now": connection.now,
            "verb": change.verb,
            "actor": change.actor,
            "tenant": tenant,
            "seq": seq,
        },
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))
