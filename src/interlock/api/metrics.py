"""What a scraper sees of this process, and of the queues of its own tenant. No tenant, job or address is a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from interlock.api.admission import Admission
from interlock.domain.registry import QueueStats
from interlock.domain.retry import SECOND
from interlock.engine.counts import Counts

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
MOST_TYPES: Final = 100
_PLACES: Final = ("ready", "delayed", "blocked", "in_progress", "waiting_for_approval", "dead_letter")
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Metrics:
    """The counters of one service, in a registry of their own."""

    def __init__(self, admission: Admission, counts: Counts) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_OfEngine(counts))
        self._of_route: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "interlock_http_requests", "Answered requests.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "interlock_http_request_seconds",
            "Time from the first header to the last byte.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        active = Gauge("interlock_http_requests_active", "Requests at work.", registry=self.registry)
        active.set_function(lambda: admission.active)
        waiting = Gauge("interlock_http_requests_waiting", "Long polls and streams.", registry=self.registry)
        waiting.set_function(lambda: admission.waiting)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        key = (method, route, status)
        if key not in self._of_route:  # to look labels up costs more than to count
            self._of_route[key] = self._requests.labels(method, route, str(status)), self._seconds.labels(route)
        requests, taken = self._of_route[key]
        requests.inc()
        taken.observe(seconds)

    def text(self, queues: Sequence[QueueStats], *, now: int) -> bytes:
        """Everything there is to tell, and how the queues of one tenant stand."""
        return generate_latest(self.registry) + self.of_queues(queues, now=now)

    @staticmethod
    def of_queues(queues: Sequence[QueueStats], *, now: int) -> bytes:
        """How queues stand; beyond the largest, types count together."""
        standing = CollectorRegistry()
        standing.register(_OfQueues(queues, now))
        return generate_latest(standing)


class _OfEngine(Collector):
    """The counts of the engine, read when somebody asks."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield CounterMetricFamily("interlock_jobs_enqueued", "Jobs added.", counts.enqueued)
        yield CounterMetricFamily("interlock_jobs_claimed", "Jobs handed out.", counts.claimed)
        moved = CounterMetricFamily(
            "interlock_jobs_moved", "What became of jobs: finishes, expiries, cancels.", labels=("verb", "status")
        )
        for labels, count in sorted(counts.moved.items()):
            moved.add_metric(labels, count)
        yield moved
        refused = CounterMetricFamily("interlock_orders_refused", "Orders refused.", labels=("verb", "code"))
        for labels, count in sorted(counts.refused.items()):
            refused.add_metric(labels, count)
        yield refused
        delivered = CounterMetricFamily(
            "interlock_webhook_tries", "Tries to deliver, by what became of the delivery.", labels=("status",)
        )
        for status, count in sorted(counts.delivered.items()):
            delivered.add_metric((status,), count)
        yield delivered
        batches = CounterMetricFamily("interlock_batches", "Calls to the database by merged verbs.", labels=("verb",))
        merged = CounterMetricFamily("interlock_batched_calls", "Single calls that went into them.", labels=("verb",))
        for verb, (calls, items) in counts.shared.items():
            batches.add_metric((verb,), calls)
            merged.add_metric((verb,), items)
        yield batches
        yield merged


class _OfQueues(Collector):
    """How the queues of one tenant stand; beyond the largest, types count together."""

    def __init__(self, queues: Sequence[QueueStats], now: int) -> None:
        self._queues, self._now = sorted(queues, key=_size, reverse=True), now

    def collect(self) -> Iterator[Metric]:
        depths = GaugeMetricFamily("interlock_queue_jobs", "Unfinished jobs and dead letters.", labels=("type", "at"))
        oldest = GaugeMetricFamily(
            "interlock_queue_oldest_ready_seconds", "How long the oldest ready job has waited.", labels=("type",)
        )
        for queue in self._queues[:MOST_TYPES]:
            for at in _PLACES:
                depths.add_metric((queue.type, at), getattr(queue, at))
            waited = 0 if queue.oldest_ready_at is None else max(self._now - queue.oldest_ready_at, 0)
            oldest.add_metric((queue.type,), waited / SECOND)
        if others := self._queues[MOST_TYPES:]:
            for at in _PLACES:
                depths.add_metric(("", at), sum(getattr(queue, at) for queue in others))
        yield depths
        yield oldest


def _size(queue: QueueStats) -> int:
    return sum(getattr(queue, at) for at in _PLACES)
