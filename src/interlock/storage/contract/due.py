"""Results of sweeps across tenants."""

from __future__ import annotations

from typing import NamedTuple


class Due(NamedTuple):
    """A due job, found across tenants: only its tenant and ID."""

    tenant: str
    job_id: str
