"""What a scraper sees of this process. No tenant, no job, no address is a label."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from interlock.api.admission import Admission

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class Metrics:
    """The counters of one service, in a registry of their own."""

    def __init__(self, admission: Admission) -> None:
        self.registry = CollectorRegistry()
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
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return generate_latest(self.registry)
