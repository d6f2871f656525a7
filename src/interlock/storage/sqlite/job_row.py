"""Conversion of job_view rows to jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.job import Job
from interlock.domain.lifecycle import Status

AT: Final = {name: i for i, name in enumerate(Job._fields)}
_STATUS, _SANITIZED, _BLOCKED = AT["status"], AT["sanitized"], AT["blocked"]
_LISTS: Final = (AT["tags"], AT["requires"], AT["awaiting"])
_STATUSES: Final = {str(status): status for status in Status}


def to_job(row: Sequence[Any]) -> Job:
    values = list(row)
    values[_STATUS] = _STATUSES[values[_STATUS]]
    for i in _LISTS:
        values[i] = () if values[i] == "[]" else tuple(json.loads(values[i]))
    values[_SANITIZED], values[_BLOCKED] = bool(values[_SANITIZED]), bool(values[_BLOCKED])
    return tuple.__new__(Job, values)
