"""`interlock usage`: what jobs have used."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from cyclopts import Parameter

from interlock.cli.limits import units
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.domain.usage_totals import By
from interlock.wire.usage_totals import usage_total_to_dict


def usage(
    *,
    by: Annotated[By, Parameter(help="what to sum by; the days are in UTC")] = By.TYPE,
    since: Annotated[
        datetime | None, Parameter(name="--from", help="jobs that finished then or later; default: 30 days before --to")
    ] = None,
    until: Annotated[
        datetime | None, Parameter(name="--to", help="jobs that finished earlier; default: now; at most 366 days")
    ] = None,
    limit: Limit = 200,
    common: Anywhere = ANYWHERE,
) -> None:
    """Sum the usage of finished jobs by type, agent, day or tree of jobs."""
    found = run(common, lambda client: client.jobs.usage(by, since=since, until=until, limit=limit))
    common.show_list(
        "usage",
        found,
        usage_total_to_dict,
        (by, "jobs", "usage"),
        lambda one: (" ".join(one.key).strip(), one.jobs, units(one.usage)),
    )
