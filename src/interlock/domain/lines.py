"""The line of an agent with a limit: who has a place in it, and when it is given back.

Of the jobs of such an agent that are due, the first ones (by due time, then arrival) have a place. A claim grants only
jobs that have one. A strict agent lets a job that has started keep its place until it has ended.
"""

from __future__ import annotations


def gives_back(origin: str, *, ended: bool, strict: bool, blocked: bool, awaited: bool) -> bool:
    """Whether a job that leaves this status frees a place; blocked: it had none, awaited: it waited for children."""
    if origin == "running":
        return ended or not strict
    if not ended or blocked:
        return False
    if origin == "waiting_for_approval" or awaited:
        return strict
    return True
