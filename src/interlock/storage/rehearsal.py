"""The test run of `interlock doctor`, which is rolled back: a limited agent, its jobs, an edit, claims and finishes."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from interlock.domain.decide import CompleteJob
from interlock.domain.edit import EditJob
from interlock.domain.job import Enqueued, Job, NewJob, Receipt
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import system
from interlock.domain.registry import Agent

TENANT: Final = "interlock doctor"
OK: Final = "ok"
AGENT: Final = Agent("doctor", "1", max_concurrency=1)
WIDER: Final = AGENT._replace(max_concurrency=2)
ASK: Final = ClaimFilter("doctor", limit=5)


def jobs() -> list[NewJob]:
    """Create two jobs of one agent with a concurrency limit of one."""
    return [NewJob(str(uuid4()), "doctor", agent_kind=AGENT.kind, agent_id=AGENT.id) for _ in range(2)]


def edit(job: NewJob) -> EditJob:
    return EditJob(job.id, system("doctor"), priority=1)


def complete(job: Job) -> CompleteJob:
    return CompleteJob(job.id, job.fence, "doctor")


def judge(step: str, answers: object, expected: int) -> None:
    """Raise if a step did not have the expected result."""
    good = [a for a in answers if isinstance(a, (Enqueued, Receipt, Job))] if isinstance(answers, list) else []
    if len(good) != expected:
        raise ValueError(f"{step} did {len(good)} of {expected}: {answers}")
