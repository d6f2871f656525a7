"""The base of stores that wrap another one: it names what they pass on, so that mypy finds a missing member."""

from __future__ import annotations

from interlock.storage.contract import Outbox, Store
from interlock.storage.expired import ExpiredCounts


class StoreWrapper:
    """Everything of the wrapped store except the operations of jobs that come in batches."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.approvals = store.approvals
        self.artifacts = store.artifacts
        self.attention = store.attention
        self.audit = store.audit
        self.channels = store.channels
        self.effects = store.effects
        self.limits = store.limits
        self.messages = store.messages
        self.outbox: Outbox = store.outbox
        self.registry = store.registry
        self.schedules = store.schedules
        self.sessions = store.sessions
        self.streams = store.streams
        self.tokens = store.tokens
        self.usage = store.usage
        self.workers = store.workers

        self.enqueue_within = store.enqueue_within
        self.new_job_shard = store.new_job_shard
        self.lease_states = store.lease_states
        self.find = store.find
        self.search = store.search
        self.search_text = store.search_text
        self.history = store.history
        self.steps = store.steps
        self.events = store.events
        self.feed = store.feed
        self.feed_end = store.feed_end
        self.has_ended = store.has_ended

        self.redrive = store.redrive
        self.redriven = store.redriven
        self.redrives = store.redrives
        self.parents = store.parents
        self.retrying_after = store.retrying_after
        self.children_after = store.children_after
        self.prune = store.prune
        self.prunes = store.prunes

        self.due_leases = store.due_leases
        self.due_deadlines = store.due_deadlines
        self.forget_claims = store.forget_claims
        self.extend_history = store.extend_history
        self.leave_history = store.leave_history
        self.drop_history = store.drop_history
        self.index_job_blocks = store.index_job_blocks
        self.faults = store.faults
        self.repair = store.repair
        self.rehearse = store.rehearse

        self.now = store.now
        self.raise_epoch = store.raise_epoch
        self.watch = store.watch
        self.watch_events = store.watch_events
        self.unreachable = store.unreachable
        self.facts = store.facts
        self.fitness = store.fitness
        self.close = store.close

    @property
    def expired(self) -> ExpiredCounts:
        return self._store.expired
