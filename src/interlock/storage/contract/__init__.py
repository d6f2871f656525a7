"""What every engine offers. The contract suite in tests/contract is its full description.

Every hot verb takes many items of one tenant, is one transaction, and answers each item on its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from interlock.domain.approval import Approval, ApprovalFilter, CastVote, CreateApprovalLink
from interlock.domain.decide import Command
from interlock.domain.job import (
    Checkpoint,
    Enqueued,
    Filter,
    Heartbeat,
    HeartbeatReply,
    HistoryRow,
    Job,
    LeaseState,
    NewJob,
    Receipt,
    Rejected,
)  # fmt: skip
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, Report, Step, StepRow
from interlock.domain.registry import Agent, JobType, QueueStats, Registry
from interlock.storage.contract.artifacts import ArtifactStore
from interlock.storage.contract.artifacts import Objects as Objects
from interlock.storage.contract.audit import AuditStore
from interlock.storage.contract.doctor import DoctorStore
from interlock.storage.contract.operations import OperationStore
from interlock.storage.contract.outbox import Outbox as Outbox
from interlock.storage.contract.tokens import TokenStore
from interlock.storage.contract.workers import WorkerStore
from interlock.storage.expired import ExpiredCounts


class Due(NamedTuple):
    """What the clock has brought up, found across tenants: nothing but whose and which."""

    tenant: str
    job_id: str


class ChainVerification(NamedTuple):
    """The result of an audit: how much was read, and the first row that does not fit, if any."""

    jobs: int
    rows: int
    first_bad: str | None


class Fitness(NamedTuple):
    """Whether a database can be worked on: the first migration it lacks, and whether its commits survive a crash."""

    lacks: str | None
    durable: bool


class Terms(NamedTuple):
    """On what terms jobs are enqueued: the registry they were checked against, and whether a new agent is made."""

    registry: int = 0
    implicit_agents: bool = True


NO_TERMS: Final = Terms()


def cancels_of(tenant: str) -> str:
    """What to watch for cancel requests and revoked leases of a tenant; no tenant has such a name."""
    return f"\x00cancel {tenant}"


class RegistryChanged(Exception):
    """The jobs were checked against a registry that is no longer the current one: check them again."""


class ApprovalStore(Protocol):
    """The part of a store that keeps gates; they are opened by an order, and closed with the wait for them."""

    async def decide(self, tenant: str, commands: Sequence[CastVote]) -> list[Approval | Rejected]:
        """Count each ballot under the lock of its job; the one that decides lets the job go on, or ends it."""
        ...

    async def create_link(self, tenant: str, link_requests: Sequence[CreateApprovalLink]) -> list[Approval | Rejected]:
        """Keep the hash of a new link token in place of the one before."""
        ...

    async def approvals(self, tenant: str, ids: Sequence[str]) -> list[Approval | None]: ...

    async def find_approvals(self, tenant: str, filter: ApprovalFilter) -> list[Approval]:
        """Newest first."""
        ...

    async def approval_of_token(self, sha256: bytes) -> tuple[str, str] | None:
        """Tenant and id of the gate whose link token has this hash, whoever's it is."""
        ...

    async def decisions(self, tenant: str, job_ids: Sequence[str]) -> dict[str, list[Approval]]:
        """What was decided about each job that has asked, oldest first."""
        ...

    async def due_approvals(self, limit: int) -> list[Due]:
        """Jobs whose gates have expired."""
        ...


class ProgressStore(Protocol):
    """The part of a store that keeps what workers leave behind while a job runs."""

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        """Keep each step under the current fence; of one name and occurrence the first stays, and is the answer."""
        ...

    async def steps(self, tenant: str, job_ids: Sequence[str], *, after: int = 0, limit: int) -> list[list[StepRow]]:
        """The steps of each job after a number, oldest first, at most `limit` of each."""
        ...

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        """Add events under the current fence and tell their numbers; one that is there already keeps its own."""
        ...

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int
    ) -> list[EventRow]:
        """The events of a job after a number and a time, oldest first; none ever appears before one that was read."""
        ...

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int) -> list[FeedEvent]:
        """The events of all jobs after a place, those of one job in their order; none ever appears before a place.

        On PostgreSQL an event waits here for every transaction that began to write before its own has ended.
        """
        ...

    async def feed_end(self, tenant: str) -> FeedPosition:
        """The place before whatever is told from now on."""
        ...

    def watch_events(self) -> asyncio.Event:
        """Set when this process has told something; take it before looking. What others tell is found by looking."""
        ...

    async def has_ended(self, tenant: str, job_id: str) -> bool | None:
        """Whether a job has ended; None if there is no such job."""
        ...


class Store(
    ApprovalStore,
    ArtifactStore,
    AuditStore,
    DoctorStore,
    ProgressStore,
    TokenStore,
    OperationStore,
    WorkerStore,
    Protocol,
):
    """One durable home for jobs."""

    @property
    def outbox(self) -> Outbox: ...

    @property
    def expired(self) -> ExpiredCounts:
        """What claims of this process have ended on their way, by verb and the status it led to."""
        ...

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        """Add jobs in the order given. With `whole` a single refusal means that none is added."""
        ...

    async def enqueue_within(
        self, connection: object, tenant: str, jobs: Sequence[NewJob], *, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        """Add all jobs or none inside the caller's own open transaction; SQLite has none to share."""
        ...

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        """Grant up to `ask.limit` jobs: the best first, each with a fence above all before it.

        With `takers` several workers ask as one: as many jobs as there are names, one for each from the first on.
        """
        ...

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        """Extend leases, each guarded by its fence, and save the checkpoints that came along."""
        ...

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        """Save progress: the newest number wins, the same one again is fine, an older one is refused."""
        ...

    async def lease_states(self, tenant: str, job_ids: Sequence[str]) -> list[LeaseState | None]: ...

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        """Decide and write each order under the lock of its job; a repeated finish gets its first receipt."""
        ...

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]: ...

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        """Newest first, without payload, result and checkpoint."""
        ...

    async def search(self, tenant: str, text: str, id_end: str | None, limit: int) -> list[str]:
        """IDs of jobs whose idempotency key is the text or whose ID ends with `id_end`, newest first."""
        ...

    async def history(self, tenant: str, job_id: str) -> list[HistoryRow]: ...

    async def pause(
        self, tenant: str, type: str, *, actor: str | None, reason: str | None, resumed_by: str | None = None
    ) -> None:
        """Stop handing out jobs of a type; actor None lets it go on."""
        ...

    async def registry(self, tenant: str) -> Registry:
        """The types of a tenant, and the version that an enqueue names."""
        ...

    async def set_type(self, tenant: str, type: JobType, *, actor: str | None = None) -> JobType:
        """Register a type; with an actor, here and below, the audit log has a row of it."""
        ...

    async def delete_type(self, tenant: str, name: str, *, actor: str | None = None) -> bool: ...

    async def set_agent(self, tenant: str, agent: Agent, *, actor: str | None = None) -> Agent:
        """Register an agent or change it; a new limit acts at once, a lower one as jobs end."""
        ...

    async def agents(self, tenant: str, after: tuple[str, str], limit: int) -> list[Agent]:
        """Agents by kind and id, from one on."""
        ...

    async def stalled_agents(self, tenant: str, *, limit: int) -> list[Agent]:
        """Strict agents all of whose slots are held by jobs that wait, by kind and id."""
        ...

    async def agents_named(self, tenant: str, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Agent]: ...

    async def delete_agent(self, tenant: str, kind: str, id: str, *, actor: str | None = None) -> bool:
        """Forget an agent that has no unfinished jobs; AgentInUse if it has."""
        ...

    async def stats(self, tenant: str, type: str | None = None) -> list[QueueStats]:
        """How many jobs of each type are where, as of one moment."""
        ...

    async def fill_slots(self, limit: int) -> int:
        """Let jobs of limited agents that have come due take their places, for up to so many tenants."""
        ...

    async def fold_counters(self, rows: int, limit: int) -> int:
        """Sum up the counts of tenants that have that many loose ones."""
        ...

    async def due_leases(self, limit: int) -> list[Due]: ...

    async def due_deadlines(self, limit: int) -> list[Due]: ...

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        """Drop the memory of named claims whose jobs no longer run under them."""
        ...

    async def now(self) -> int: ...

    async def verify(self, tenant: str | None = None) -> ChainVerification:
        """Recompute every chain of history, and compare its end with the job."""
        ...

    async def head(self, tenant: str | None = None) -> str:
        """One hash over the ends of a tenant's chains, or of all there are, to be kept elsewhere."""
        ...

    def watch(self, tenant: str) -> asyncio.Event:
        """Set when something of the tenant may have become claimable, here or elsewhere; take it before looking.

        With `cancels_of(tenant)`: when a cancellation may have been requested, or a lease revoked.
        """
        ...

    async def new_job_shard(self, tenant: str, type: str | None = None) -> int:
        """The number of the shard that new jobs go to, which their ids name; 0 where there is one."""
        ...

    async def unreachable(self) -> dict[str, str]:
        """The shards that do not answer, by name, and why; raises when nothing does."""
        ...

    async def facts(self) -> dict[str, str]:
        """What an operator wants to know of this database: version, durability, schema, clock."""
        ...

    async def fitness(self) -> Fitness:
        """Asked often, so it costs next to nothing."""
        ...

    async def close(self) -> None: ...
