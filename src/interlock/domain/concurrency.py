"""The line of an agent with a limit: who has a place in it, and when it is given back.

Of the jobs of such an agent that are due, the first ones (by due time, then arrival) have a place. A claim grants only
jobs that have one. A job that stops running under a strict agent with a limit keeps its place until it has ended, or
the agent is no longer strict; then it has to line up again, even if the agent is strict by that time.
"""

from __future__ import annotations


def keeps_slot(origin: str, *, strict: bool, has_slot: bool) -> bool:
    """Whether a job that leaves this status unfinished still has its place; placed: it had one while it waited."""
    return strict if origin == "running" else has_slot


def frees_slot(origin: str, *, ended: bool, strict: bool, has_slot: bool) -> bool:
    """Whether a job that leaves this status frees a place."""
    return ended or not strict if origin == "running" else ended and has_slot
