"""Metrics of this process, and of the queues and limits of one tenant. No tenant, job or address is a label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from interlock.api.admission import Admission
from interlock.domain.budget import BudgetState
from interlock.domain.limits import LimitState
from interlock.domain.registry import QueueStats
from interlock.domain.retry import SECOND
from interlock.engine.metrics import MAX_TYPES, EngineMetrics, Histogram
from interlock.engine.utilization import capacity, share_of

_CLAIMS: Final = "/v1/claims"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_PLACES: Final = ("ready", "delayed", "blocked", "in_progress", "waiting_for_approval", "dead_letter")
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class TenantState(NamedTuple):
    """What the metrics of a tenant are made from; `attention` counts jobs by what they need."""

    queues: Sequence[QueueStats]
    limits: Sequence[LimitState] = ()
    budgets: Sequence[BudgetState] = ()
    attention: Mapping[str, int] = {}
    now: int = 0


class Metrics:
    """The counters of one service, in a separate registry."""

    def __init__(self, admission: Admission, counts: EngineMetrics) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfEngine(counts))
        self._requests = _OfRequests()
        self.registry.register(self._requests)
        active = Gauge("interlock_http_requests_active", "Requests in progress.", registry=self.registry)
        active.set_function(lambda: admission.active)
        waiting = Gauge(
            "interlock_http_requests_waiting", "Waiting requests: long polls and streams.", registry=self.registry
        )
        waiting.set_function(lambda: admission.waiting)

    def answered(self, method: str, route: str, status: int, seconds: float, code: str | None = None) -> None:
        self._requests.add(method, route, status, seconds, code)

    def text(self, tenant: TenantState) -> bytes:
        """Return all metrics, with those of one tenant."""
        return generate_latest(self.registry) + self.of_tenant(tenant)

    @staticmethod
    def of_tenant(tenant: TenantState) -> bytes:
        """Return the metrics of a tenant; types beyond the largest ones are aggregated."""
        state = CollectorRegistry()
        state.register(_OfQueues(tenant.queues, tenant.now))
        state.register(_OfAttention(tenant.attention))
        state.register(_OfLimits(tenant.limits))
        state.register(_OfBudgets(tenant.budgets))
        return generate_latest(state)


class _OfRequests(Collector):
    """Counts of responses. Only the event loop updates them, so they need no lock; labels are built at scrape time."""

    def __init__(self) -> None:
        self._answered: Counter[tuple[str, str, int]] = Counter()
        self._took = Histogram(_BUCKETS)
        self._rejected_claims: Counter[str] = Counter()  # by error code

    def add(self, method: str, route: str, status: int, seconds: float, code: str | None) -> None:
        self._answered[method, route, status] += 1
        self._took.add((route,), seconds)
        if route == _CLAIMS and code is not None:
            self._rejected_claims[code] += 1

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "interlock_http_requests", "Completed requests.", labels=("method", "route", "status")
        )
        for (method, route, status), count in sorted(self._answered.items()):
            requests.add_metric((method, route, str(status)), count)
        yield requests
        claims = CounterMetricFamily("interlock_claims_rejected", "Claims rejected, by error code.", labels=("code",))
        for code, count in sorted(self._rejected_claims.items()):
            claims.add_metric((code,), count)
        yield claims
        yield _histogram(
            "interlock_http_request_seconds",
            "Request duration, from the first header to the last byte.",
            ("route",),
            self._took,
        )


class _OfEngine(Collector):
    """The engine's counters, read at scrape time."""

    def __init__(self, counts: EngineMetrics) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield CounterMetricFamily("interlock_jobs_enqueued", "Jobs enqueued.", counts.enqueued)
        yield CounterMetricFamily("interlock_jobs_claimed", "Jobs claimed.", counts.claimed)
        yield _histogram(
            "interlock_job_wait_seconds", "Time from run_at to the claim of a job.", ("type",), counts.waited
        )
        yield _histogram(
            "interlock_job_run_seconds",
            "Time from the claim of a job to the end of its run.",
            ("type", "status"),
            counts.ran,
        )
        used = CounterMetricFamily("interlock_usage", "Usage that completed jobs reported.", labels=("unit",))
        for unit, amount in sorted(counts.used.items()):
            used.add_metric((unit,), amount)
        yield used
        moved = CounterMetricFamily(
            "interlock_job_transitions", "Transitions of jobs: finishes, expiries, cancels.", labels=("verb", "status")
        )
        for labels, count in sorted(counts.moved.items()):
            moved.add_metric(labels, count)
        yield moved
        yield CounterMetricFamily("interlock_leases_expired", "Leases expired.", counts.expired_leases)
        refused = CounterMetricFamily("interlock_commands_rejected", "Commands rejected.", labels=("verb", "code"))
        for labels, count in sorted(counts.refused.items()):
            refused.add_metric(labels, count)
        yield refused
        delivered = CounterMetricFamily(
            "interlock_webhook_attempts", "Delivery attempts by outcome.", labels=("status",)
        )
        for status, count in sorted(counts.delivered.items()):
            delivered.add_metric((status,), count)
        yield delivered
        batches = CounterMetricFamily("interlock_batches", "Batches sent to the database.", labels=("verb",))
        merged = CounterMetricFamily("interlock_batched_calls", "Calls merged into batches.", labels=("verb",))
        for verb, (calls, items) in counts.shared.items():
            batches.add_metric((verb,), calls)
            merged.add_metric((verb,), items)
        yield batches
        yield merged


def _histogram(name: str, about: str, labels: Sequence[str], values: Histogram) -> Metric:
    family = HistogramMetricFamily(name, about, labels=labels)
    for series, buckets, total in values.series():
        family.add_metric(series, buckets, total)
    return family


class _OfQueues(Collector):
    """Queue metrics of one tenant; types beyond the largest ones are aggregated."""

    def __init__(self, queues: Sequence[QueueStats], now: int) -> None:
        self._queues, self._now = sorted(queues, key=_size, reverse=True), now

    def collect(self) -> Iterator[Metric]:
        depths = GaugeMetricFamily(
            "interlock_queue_jobs", "Unfinished jobs and dead letters.", labels=("type", "location")
        )
        oldest = GaugeMetricFamily(
            "interlock_queue_oldest_ready_seconds", "Age of the oldest ready job.", labels=("type",)
        )
        for queue in self._queues[:MAX_TYPES]:
            for at in _PLACES:
                depths.add_metric((queue.type, at), getattr(queue, at))
            waited = 0 if queue.oldest_ready_at is None else max(self._now - queue.oldest_ready_at, 0)
            oldest.add_metric((queue.type,), waited / SECOND)
        if others := self._queues[MAX_TYPES:]:
            for at in _PLACES:
                depths.add_metric(("", at), sum(getattr(queue, at) for queue in others))
        yield depths
        yield oldest


class _OfLimits(Collector):
    """Metrics of the limits of one tenant; with keys, sums over all keys."""

    def __init__(self, limits: Sequence[LimitState]) -> None:
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        running = GaugeMetricFamily("interlock_limit_running", "Running jobs that name a limit.", labels=("limit",))
        waiting = GaugeMetricFamily("interlock_limit_waiting", "Due jobs that name a limit.", labels=("limit",))
        available = GaugeMetricFamily(
            "interlock_limit_available", "Amount available of each unit.", labels=("limit", "unit")
        )
        most = GaugeMetricFamily(
            "interlock_limit_capacity", "Largest amount available of each unit.", labels=("limit", "unit")
        )
        share = GaugeMetricFamily(
            "interlock_limit_utilization_ratio", "Share of the fullest unit that is in use.", labels=("limit",)
        )
        held = GaugeMetricFamily("interlock_limit_held", "Whether a limit is held.", labels=("limit",))
        for limit, state, _ in self._limits:
            if not limit.keyed:
                for unit, amount in capacity(limit).items():
                    most.add_metric((limit.name, unit), amount)
                share.add_metric((limit.name,), share_of(limit, state) or 0.0)
            running.add_metric((limit.name,), state.used)
            waiting.add_metric((limit.name,), state.waiting)
            for unit, amount in state.available.items():
                available.add_metric((limit.name, unit), amount)
            held.add_metric((limit.name,), state.held_until is not None)
        yield from (running, waiting, available, most, share, held)


class _OfBudgets(Collector):
    """Metrics of the budgets of one tenant."""

    def __init__(self, budgets: Sequence[BudgetState]) -> None:
        self._budgets = budgets

    def collect(self) -> Iterator[Metric]:
        labels = ("budget", "unit")
        amount = GaugeMetricFamily("interlock_budget_amount", "Amount of a budget in a period.", labels=labels)
        spent = GaugeMetricFamily("interlock_budget_spent", "Amount spent in the period.", labels=labels)
        reserved = GaugeMetricFamily("interlock_budget_reserved", "Amount running jobs reserve.", labels=labels)
        waiting = GaugeMetricFamily("interlock_budget_waiting", "Due jobs that name a budget.", labels=("budget",))
        for one in self._budgets:
            for family, amounts in ((amount, one.amount), (spent, one.spent), (reserved, one.reserved)):
                for unit, value in amounts.items():
                    family.add_metric((one.name, unit), value)
            waiting.add_metric((one.name,), one.waiting)
        yield from (amount, spent, reserved, waiting)


class _OfAttention(Collector):
    """Jobs of one tenant that need attention, by what they need."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("interlock_jobs_needing_attention", "Jobs that need attention.", labels=("need",))
        for need, count in self._counts.items():
            family.add_metric((need,), count)
        yield family


def _size(queue: QueueStats) -> int:
    return sum(getattr(queue, at) for at in _PLACES)
