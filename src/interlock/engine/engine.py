"""The engine: the operations of every actor on one store."""

from __future__ import annotations

from interlock.domain.approval import StepUp
from interlock.engine.approvals import Approvals
from interlock.engine.artifacts import COLLECT_EVERY_SECONDS, Artifacts
from interlock.engine.attention import Attention
from interlock.engine.audit import Audit
from interlock.engine.budgets import Budgets
from interlock.engine.channels import Channels
from interlock.engine.completion import Completion
from interlock.engine.effects import Effects
from interlock.engine.explain import Explainer
from interlock.engine.jobs import Jobs
from interlock.engine.lease_holders import LeaseHolders
from interlock.engine.leases import Leases
from interlock.engine.limits import FORGET_IDLE_SECONDS, FlowLimits
from interlock.engine.maintenance import Maintenance, MaintenanceTask
from interlock.engine.messages import Messages
from interlock.engine.metrics import EngineMetrics, counted
from interlock.engine.notifier import Notifier
from interlock.engine.operations import Operations
from interlock.engine.outbound_http import OutboundClient
from interlock.engine.progress import Progress
from interlock.engine.queries import Queries
from interlock.engine.registry import TypeRegistry
from interlock.engine.restore import Restore
from interlock.engine.retention import EXTEND_EVERY_SECONDS, RETAIN_EVERY_SECONDS, Retention
from interlock.engine.schedules import LOOK_EVERY_SECONDS, Schedules
from interlock.engine.sessions import FORGET_EVERY_SECONDS as FORGET_SESSIONS_SECONDS
from interlock.engine.sessions import Sessions
from interlock.engine.spent_budgets import ANNOUNCE_SECONDS, LOOK_SECONDS, SpentBudgets
from interlock.engine.streams import Streams
from interlock.engine.tokens import OWN, Tokens, Trust
from interlock.engine.usage_totals import UsageTotals
from interlock.engine.utilization import SAMPLE_SECONDS, Utilization, UtilizationSampler
from interlock.engine.webhook_messages import FindFormat, no_format
from interlock.engine.webhook_sender import Sender
from interlock.engine.webhooks import SWEEP_EVERY_SECONDS, Webhooks
from interlock.engine.worker_presence import FORGET_EVERY_SECONDS, Workers
from interlock.storage.contract import Objects, Store
from interlock.wire import LIMITS, Limits


class Engine:
    """One store and the operations that each actor may perform on it."""

    def __init__(
        self,
        store: Store,
        limits: Limits = LIMITS,
        *,
        objects: Objects | None = None,
        trust: Trust = OWN,
        strict_types: bool = False,
        implicit_agents: bool = True,
        outside: OutboundClient | None = None,
        webhook_formats: FindFormat = no_format,
        retention_days: float | None = None,
        public_url: str | None = None,
        step_up: StepUp | None = None,
    ) -> None:
        self.limits = limits
        self.counts = EngineMetrics(store)
        self.store = store = counted(store, self.counts)
        self.objects = objects
        self.artifacts = Artifacts(store, objects, limits)
        self.registry = TypeRegistry(store, limits, strict_types=strict_types, implicit_agents=implicit_agents)
        self.jobs = Jobs(store, limits, self.registry)
        self.schedules = Schedules(store, self.registry, self.jobs)
        self.flow = FlowLimits(store)
        self.budgets = Budgets(store)
        self.spent_budgets = SpentBudgets(store)
        self.utilization = Utilization()
        sampler = UtilizationSampler(store, self.flow, self.budgets, self.utilization)
        self.usage = UsageTotals(store)
        self.operations = Operations(store, limits, strict_types=strict_types, implicit_agents=implicit_agents)
        self.retention = Retention(store, retention_days)
        self.workers = Workers(store.workers)
        self.leases = Leases(store, limits, workers=self.workers)
        self.approvals = Approvals(store, limits, step_up)
        self.progress = Progress(store, limits)
        self.messages = Messages(store)
        self.streams = Streams(store, limits)
        self.effects = Effects(store, limits)
        self.queries = Queries(store)
        self.audit = Audit(store)
        self.restore = Restore(store)
        self.tokens = Tokens(store.tokens, trust)
        self.sessions = Sessions(store.sessions)
        self.why = Explainer(store, self.workers)
        self.attention = Attention(store, self.workers)
        self.outside = outside or OutboundClient(limits.webhooks)
        self.webhooks = Webhooks(store, self.outside)
        self.notifier = Notifier(store, self.outside, public_url)
        self.channels = Channels(store, self.outside, self.notifier)
        self.sender = Sender(store, self.outside, formats=webhook_formats, notifier=self.notifier)
        self.maintenance = Maintenance(
            store,
            [
                MaintenanceTask("schedules", LOOK_EVERY_SECONDS, self.schedules.fire_due),
                MaintenanceTask("budgets", LOOK_SECONDS, self.spent_budgets.act),
                MaintenanceTask("spent budgets", ANNOUNCE_SECONDS, self.spent_budgets.announce),
                MaintenanceTask("limits", FORGET_IDLE_SECONDS, self.flow.forget_idle),
                MaintenanceTask("utilization", SAMPLE_SECONDS, sampler.sample),
                MaintenanceTask("sessions", FORGET_SESSIONS_SECONDS, self.sessions.forget),
                MaintenanceTask("artifacts", COLLECT_EVERY_SECONDS, self.artifacts.collect_aside),
                MaintenanceTask("subscriptions", SWEEP_EVERY_SECONDS, self.webhooks.sweep_subscriptions),
                MaintenanceTask("workers", FORGET_EVERY_SECONDS, self.workers.forget),
                MaintenanceTask("retention", RETAIN_EVERY_SECONDS, self.retention.retain_aside),
                MaintenanceTask("history", EXTEND_EVERY_SECONDS, store.extend_history),
            ],
        )
        self.waits = Completion(store)
        self.holders = LeaseHolders(store)

    async def close(self) -> None:
        await self.maintenance.stop()
        await self.artifacts.stop()
        await self.retention.stop()
        await self.sender.stop()
        await self.notifier.close()
        await self.outside.close()
        await self.tokens.close()
        await self.waits.stop()
        await self.workers.stop()
        await self.store.close()
        if self.objects is not None:
            await self.objects.close()
