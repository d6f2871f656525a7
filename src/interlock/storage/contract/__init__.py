"""The store interface that every engine implements. The suite in tests/contract is its full description.

Every hot operation takes many items of one tenant, is one transaction, and returns a result for each item.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

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
    TextSearch,
)  # fmt: skip
from interlock.domain.policy import ClaimFilter
from interlock.domain.progress import EventRow, FeedEvent, FeedPosition, Report, Step, StepRow
from interlock.storage.contract.approvals import ApprovalStore
from interlock.storage.contract.artifacts import ArtifactStore
from interlock.storage.contract.artifacts import Objects as Objects
from interlock.storage.contract.attention import AttentionStore
from interlock.storage.contract.audit import AuditStore
from interlock.storage.contract.audit import ChainVerification as ChainVerification
from interlock.storage.contract.channels import ChannelStore
from interlock.storage.contract.doctor import DoctorStore
from interlock.storage.contract.due import Due as Due
from interlock.storage.contract.effects import EffectStore
from interlock.storage.contract.limits import LimitStore
from interlock.storage.contract.messages import MessageStore
from interlock.storage.contract.operations import OperationStore
from interlock.storage.contract.outbox import Outbox as Outbox
from interlock.storage.contract.registry import RegistryStore
from interlock.storage.contract.schedules import ScheduleStore
from interlock.storage.contract.sessions import SessionStore
from interlock.storage.contract.streams import StreamStore
from interlock.storage.contract.streams import streams_of as streams_of
from interlock.storage.contract.tokens import TokenStore
from interlock.storage.contract.usage import UsageStore
from interlock.storage.contract.workers import WorkerStore
from interlock.storage.expired import ExpiredCounts


class Fitness(NamedTuple):
    """Readiness of a database: the first migration it lacks, and whether its commits survive a crash."""

    lacks: str | None
    durable: bool


class Terms(NamedTuple):
    """Conditions of an enqueue: the registry version the jobs were validated against, and whether to create agents."""

    registry: int = 0
    implicit_agents: bool = True


NO_TERMS: Final = Terms()


def cancels_of(tenant: str) -> str:
    """Return the key to watch for cancel requests and revoked leases of a tenant; no tenant has such a name."""
    return f"\x00cancel {tenant}"


class RegistryChanged(Exception):
    """The jobs were validated against a registry that is no longer current: validate them again."""


class ProgressStore(Protocol):
    """The part of a store for steps and events of running jobs."""

    async def save_steps(self, tenant: str, steps: Sequence[Step]) -> list[StepRow | Rejected]:
        """Save each step under the current fence; the first result of a name and occurrence is kept and returned."""
        ...

    async def steps(self, tenant: str, job_ids: Sequence[str], *, after: int = 0, limit: int) -> list[list[StepRow]]:
        """List the steps of each job after a number, oldest first, at most `limit` per job."""
        ...

    async def add_events(self, tenant: str, reports: Sequence[Report]) -> list[tuple[int, ...] | Rejected]:
        """Add events under the current fence and return their numbers; an existing event keeps its number."""
        ...

    async def events(
        self, tenant: str, job_id: str, *, after: int = 0, since: int | None = None, limit: int
    ) -> list[EventRow]:
        """List the events of a job after a number and a time, oldest first; none ever appears before a read one."""
        ...

    async def feed(self, tenant: str, after: FeedPosition, *, limit: int) -> list[FeedEvent]:
        """List the events of all jobs after a position, those of one job in order; none ever appears before a position.

        On PostgreSQL, an event becomes visible here once every transaction that started writing before its own has
        ended.
        """
        ...

    async def feed_end(self, tenant: str) -> FeedPosition:
        """Return the position before all future events."""
        ...

    def watch_events(self) -> asyncio.Event:
        """Return an asyncio event that is set when this process adds job events; get it before reading.

        It is not set for job events of other processes: poll for those.
        """
        ...

    async def has_ended(self, tenant: str, job_id: str) -> bool | None:
        """Return whether a job is terminal; None if it does not exist."""
        ...


class Store(
    DoctorStore,
    ProgressStore,
    OperationStore,
    Protocol,
):
    """Durable storage of jobs."""

    @property
    def approvals(self) -> ApprovalStore: ...

    @property
    def audit(self) -> AuditStore: ...

    @property
    def artifacts(self) -> ArtifactStore: ...

    @property
    def registry(self) -> RegistryStore: ...

    @property
    def messages(self) -> MessageStore: ...

    @property
    def streams(self) -> StreamStore: ...

    @property
    def effects(self) -> EffectStore: ...

    @property
    def usage(self) -> UsageStore: ...

    @property
    def tokens(self) -> TokenStore: ...

    @property
    def workers(self) -> WorkerStore: ...

    @property
    def attention(self) -> AttentionStore: ...

    @property
    def schedules(self) -> ScheduleStore: ...
    @property
    def limits(self) -> LimitStore: ...
    @property
    def channels(self) -> ChannelStore: ...

    @property
    def sessions(self) -> SessionStore: ...

    @property
    def outbox(self) -> Outbox: ...

    @property
    def expired(self) -> ExpiredCounts:
        """Transitions that claims of this process made before selecting jobs, by operation and resulting status."""
        ...

    async def enqueue(
        self, tenant: str, jobs: Sequence[NewJob], *, whole: bool = False, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        """Add jobs in the order given. With `whole`, a single rejection means that none is added."""
        ...

    async def enqueue_within(
        self, connection: object, tenant: str, jobs: Sequence[NewJob], *, terms: Terms = NO_TERMS
    ) -> list[Enqueued | Rejected]:
        """Add all jobs or none inside the caller's own open transaction; not available on SQLite."""
        ...

    async def claim(self, tenant: str, ask: ClaimFilter, *, claimants: Sequence[str] = ()) -> list[Job]:
        """Lease up to `ask.limit` jobs, best first, each with a fence above all earlier ones.

        With `claimants`, the claim is for several workers: as many jobs as there are names, one for each in order.
        """
        ...

    async def heartbeat(self, tenant: str, heartbeats: Sequence[Heartbeat]) -> list[HeartbeatReply | Rejected]:
        """Extend leases, each guarded by its fence, and save the checkpoints sent with them."""
        ...

    async def checkpoint(self, tenant: str, checkpoints: Sequence[Checkpoint]) -> list[int | Rejected]:
        """Save progress: the highest number wins, the same number is accepted again, a lower one is rejected."""
        ...

    async def lease_states(self, tenant: str, job_ids: Sequence[str]) -> list[LeaseState | None]: ...

    async def carry_out(self, tenant: str, orders: Sequence[Command]) -> list[Receipt | Rejected]:
        """Decide and write each command under the lock of its job; a repeated finish returns its first receipt."""
        ...

    async def get(self, tenant: str, job_ids: Sequence[str]) -> list[Job | None]: ...

    async def find(self, tenant: str, filter: Filter) -> list[Job]:
        """List jobs, newest first, without payload, result and checkpoint."""
        ...

    async def search(self, tenant: str, text: str, id_end: str | None, limit: int) -> list[str]:
        """Return IDs of jobs whose idempotency key is the text or whose ID ends with `id_end`, newest first."""
        ...

    async def search_text(self, tenant: str, wanted: TextSearch) -> list[str]:
        """Return IDs of the newest jobs that contain a text, newest first. Only ASCII letters match in either case."""
        ...

    async def history(self, tenant: str, job_id: str, *, after: int = 0, limit: int | None = None) -> list[HistoryRow]:
        """List the transitions of a job with a version above `after`, oldest first; without a limit, all of them."""
        ...

    async def due_leases(self, limit: int) -> list[Due]: ...

    async def due_deadlines(self, limit: int) -> list[Due]: ...

    async def forget_claims(self, older_than_seconds: float, limit: int) -> int:
        """Delete claim results whose jobs no longer run under them."""
        ...

    async def now(self) -> int: ...

    async def raise_epoch(self, above: int) -> int:
        """Raise the epoch above `above`, so that future fences exceed all issued so far; return the new epoch.

        Only the owner of a database may do this. No claim in progress keeps the old epoch.
        """
        ...

    def watch(self, tenant: str) -> asyncio.Event:
        """Return an event that is set when a job of the tenant may have become claimable; get it before claiming.

        The change may come from any process. With `cancels_of(tenant)`: set when a cancellation may have been
        requested, or a lease revoked.
        """
        ...

    async def new_job_shard(self, tenant: str, type: str | None = None) -> int:
        """Return the number of the shard for new jobs, which their IDs encode; 0 without shards."""
        ...

    async def unreachable(self) -> dict[str, str]:
        """Return unreachable shards by name, with the reason; raise if none responds."""
        ...

    async def facts(self) -> dict[str, str]:
        """Return facts about this database for operators: version, durability, schema, clock."""
        ...

    async def fitness(self) -> Fitness:
        """Return the readiness of the database; called often, so it must be cheap."""
        ...

    async def close(self) -> None: ...
