"""OpenTelemetry spans. Without the extra `otel`, or a configured tracer provider, tracing is off and costs nothing.

In a program that configures OpenTelemetry itself, spans go to its provider. The command line configures it from OTEL_*.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal

from interlock.errors import Invalid

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

Kind = Literal["server", "client", "producer", "consumer"]
_EXPORTERS: Final = "opentelemetry_traces_exporter"


@contextmanager
def span(
    name: str, kind: Kind, *, parent: str | None = None, attributes: Mapping[str, Any] | None = None
) -> Iterator[Span | None]:
    """Run a block in a span whose parent is `parent` (a traceparent) or the current span; None if tracing is off."""
    tracer = _tracer()
    if tracer is None:
        yield None
        return
    from opentelemetry import trace

    with tracer.start_as_current_span(
        name,
        context=None if parent is None else _propagator().extract({"traceparent": parent}),
        kind=trace.SpanKind[kind.upper()],
        attributes=dict(attributes or {}),
    ) as begun:
        yield begun


def is_on() -> bool:
    """Return whether tracing is on."""
    return _tracer() is not None


def traceparent() -> str | None:
    """Return the W3C traceparent of the current span, or None."""
    if _tracer() is None:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


def configure() -> None:
    """Configure the exporters of the OTEL_* variables; without these variables tracing stays off."""
    named = os.environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if _names_a_collector() else "none")
    if named == "none" or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise Invalid("OTEL_* variables ask for traces: install interlock[otel]", pointer="/otel") from None
    provider = TracerProvider(resource=Resource.create({} if _names_the_service() else {"service.name": "interlock"}))
    for name in named.split(","):
        provider.add_span_processor(BatchSpanProcessor(_exporter(name.strip())))
    trace.set_tracer_provider(provider)


def _exporter(name: str) -> Any:
    # The exporter name otlp covers several protocols; a separate variable selects one.
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    wanted = f"otlp_proto_{'grpc' if protocol == 'grpc' else 'http'}" if name == "otlp" else name
    found = next(iter(entry_points(group=_EXPORTERS, name=wanted)), None)
    if found is None:
        raise Invalid(
            f"OTEL_TRACES_EXPORTER asks for {name}, and no package here brings it; for otlp install "
            "opentelemetry-exporter-otlp",
            pointer="/otel",
        )
    return found.load()()


def _names_a_collector() -> bool:
    return any(os.environ.get(f"OTEL_EXPORTER_OTLP_{middle}ENDPOINT") for middle in ("", "TRACES_"))


def _names_the_service() -> bool:
    return bool(os.environ.get("OTEL_SERVICE_NAME")) or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )


def _propagator() -> TraceContextTextMapPropagator:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _provider() -> TracerProvider | None:
    """Return the tracer provider of this process, or None. Without an import of OpenTelemetry there cannot be one."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider) else provider


def _tracer() -> Tracer | None:
    provider = _provider()
    return None if provider is None else provider.get_tracer("interlock")
