"""Conversion of job_view rows to jobs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from interlock.domain.job import FIELDS, Job, Kind
from interlock.storage.job_columns import AT, STATUSES

_STATUS: Final = AT["status"]
_LISTS: Final = tuple(AT[name] for name, field in FIELDS.items() if field.kind is Kind.NAMES)
_BOOLEANS: Final = tuple(AT[name] for name, field in FIELDS.items() if field.kind is Kind.BOOLEAN)


def to_job(row: Sequence[Any]) -> Job:
    values = list(row)
    if len(values) != len(AT):
        raise TypeError(f"{len(values)} columns for {len(AT)} fields of a job")
    values[_STATUS] = STATUSES[values[_STATUS]]
    for i in _LISTS:
        values[i] = () if values[i] == "[]" else tuple(json.loads(values[i]))
    for i in _BOOLEANS:
        values[i] = values[i] != 0
    return tuple.__new__(Job, values)
