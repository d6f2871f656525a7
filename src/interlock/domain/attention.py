"""Why a job needs attention."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MAX_COUNTED: Final = 1000  # jobs that need attention are counted up to this number


class Need(StrEnum):
    """A failure that was neither acknowledged nor redriven, or a due job that no present worker could claim."""

    FAILURE = "failure"
    NO_WORKER = "no_worker"
