"""Rows that violate a database rule: a batch that fails because of one is executed job by job."""

from __future__ import annotations

import logging
from typing import Final

from interlock.domain.job import Rejected
from interlock.errors import BrokenJob

log = logging.getLogger(__name__)

# Errors from reading a row that no operation could have written. UnicodeError is not one: such text comes from a
# caller.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AssertionError, ArithmeticError)


def unreadable(error: Exception) -> bool:
    """Return whether an error may come from a row that violates a rule."""
    return isinstance(error, _UNREADABLE) and not isinstance(error, UnicodeError)


def refused(job_id: str, error: Exception) -> Rejected:
    """Return the rejection for a job whose row cannot be changed."""
    log.warning("job %s violates a database constraint (%s); run interlock doctor", job_id, error)
    return Rejected(BrokenJob(job_id))
