"""Rows that break a rule of the database: what fails because of one is done for each job alone."""

from __future__ import annotations

import logging
from typing import Final

from interlock.domain.job import Rejected
from interlock.errors import BrokenJob

log = logging.getLogger(__name__)

# What reading a row that no verb could have written leads to; text that cannot be encoded comes from a caller.
_UNREADABLE: Final = (ValueError, LookupError, TypeError, AssertionError, ArithmeticError)


def unreadable(error: Exception) -> bool:
    """Whether an error of ours may come from a row that breaks a rule."""
    return isinstance(error, _UNREADABLE) and not isinstance(error, UnicodeError)


def refused(job_id: str, error: Exception) -> Rejected:
    """The answer for a job whose row does not let itself be changed."""
    log.warning("job %s breaks a rule of the database (%s); run interlock doctor", job_id, error)
    return Rejected(BrokenJob(job_id))
