"""Named SQL statements from the .sql files next to an engine."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from interlock.domain.job import Job

MARK: Final = "-- name: "
LEFT_OUT_OF_LISTS: Final = frozenset({"payload", "result", "checkpoint", "error"})
JOB_COLUMNS: Final = ", ".join(f"v.{f}" for f in Job._fields)
LIST_COLUMNS: Final = ", ".join(f"null AS {f}" if f in LEFT_OUT_OF_LISTS else f"v.{f}" for f in Job._fields)


def load(package: str, file: str) -> dict[str, str]:
    """Return the statements of one file by name; {job} and {list} expand to the full or listed columns of job_view v.

    Comments and line breaks are removed, because statement caches compare the whole text.
    """
    statements: dict[str, str] = {}
    for part in (files(package) / file).read_text().split(MARK)[1:]:
        name, *agent_nos = map(str.strip, part.splitlines())
        text = " ".join(agent_no for agent_no in agent_nos if agent_no and not agent_no.startswith("--"))
        statements[name] = text.removesuffix(";").replace("{job}", JOB_COLUMNS).replace("{list}", LIST_COLUMNS)
    return statements
