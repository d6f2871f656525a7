"""Spans: from the producer through the service to the task, in one trace; and none unless they are enabled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import interlock
from interlock import tracing
from interlock.client.http import HttpClient
from interlock.client.local import LocalClient
from interlock.client.port import Client
from interlock.domain.principal import local
from interlock.errors import Invalid
from interlock.worker.loop import Worker
from tests.api.rig import Api


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """OpenTelemetry as a program sets it up, for the length of a test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> Sequence[ReadableSpan]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def is_under(child: ReadableSpan, parent: ReadableSpan) -> bool:
    assert child.context is not None
    assert parent.context is not None
    return (
        child.parent is not None
        and child.parent.span_id == parent.context.span_id
        and child.context.trace_id == parent.context.trace_id
    )


@pytest.mark.parametrize("remote", [False, True], ids=["in process", "over http"])
@pytest.mark.parametrize("is_async", [False, True], ids=["in a thread", "async"])
async def test_the_spans_of_a_handler_are_children_of_the_enqueuing_span(
    api: Api, spans: InMemorySpanExporter, remote: bool, is_async: bool
) -> None:
    app = interlock.App("sqlite:///:memory:")

    async def connect() -> Client:
        return HttpClient(api.url) if remote else LocalClient(api.engine, local(api.tenant))

    app._connect_by(connect)

    def work() -> None:
        with trace.get_tracer_provider().get_tracer("mine").start_as_current_span("inside"):
            pass

    async def work_async() -> None:
        work()

    task: Any = app.task(name="work")(work_async if is_async else work)
    with trace.get_tracer_provider().get_tracer("mine").start_as_current_span("outside"):
        await task.enqueue()
        await task.enqueue_many([{}, {}])
    await Worker(app).run(drain=True)
    client = await app._client()
    if remote:
        await client.close()
    (outside,) = named(spans, "outside")
    enqueues, runs, insides = named(spans, "enqueue work"), named(spans, "run work"), named(spans, "inside")
    assert len(enqueues) == 2
    assert len(runs) == len(insides) == 3
    assert all(is_under(enqueue, outside) for enqueue in enqueues)
    assert sorted(sum(is_under(run, enqueue) for run in runs) for enqueue in enqueues) == [1, 2]
    assert all(any(is_under(inside, run) for run in runs) for inside in insides)
    assert {run.attributes["interlock.outcome"] for run in runs if run.attributes} == {"complete"}
    assert sum(int(str((claim.attributes or {})["interlock.jobs"])) for claim in named(spans, "claim")) == 3
    if remote:
        requests = [*named(spans, "POST /v1/jobs"), *named(spans, "POST /v1/jobs/batch")]
        assert all(any(is_under(request, enqueue) for enqueue in enqueues) for request in requests)


async def test_a_request_is_a_span_named_by_its_route(api: Api, spans: InMemorySpanExporter) -> None:
    caller = f"00-{'a' * 32}-{'b' * 16}-01"
    job = await api.enqueue()
    await api.get("/v1/jobs/nothing", headers={"traceparent": caller})
    (made,) = named(spans, "POST /v1/jobs")
    (asked,) = named(spans, "GET /v1/jobs/{job_id}")
    assert made.context is not None
    assert job["traceparent"].split("-")[1:3] == [f"{made.context.trace_id:032x}", f"{made.context.span_id:016x}"]
    assert asked.parent is not None
    assert f"{asked.parent.span_id:016x}" == "b" * 16
    reported = dict(asked.attributes or {})
    assert (reported["http.response.status_code"], reported["error.type"]) == (404, "not_found")
    assert "nothing" not in asked.to_json()


async def test_the_trace_is_not_part_of_the_idempotency_fingerprint(api: Api, spans: InMemorySpanExporter) -> None:
    app = interlock.App("sqlite:///:memory:")

    async def connect() -> Client:
        return LocalClient(api.engine, local(api.tenant))

    app._connect_by(connect)
    task: Any = app.task(name="work", idempotency_key="once")(lambda: None)
    first, again = await task.enqueue(), await task.enqueue()
    assert again.id == first.id


async def test_without_a_provider_no_span_is_created_and_the_trace_of_the_caller_is_kept(api: Api) -> None:
    assert not tracing.is_on()
    caller = f"00-{'a' * 32}-{'b' * 16}-01"
    made = await api.post("/v1/jobs", {"type": "work"}, headers={"traceparent": caller})
    assert made.json()["traceparent"] == caller
    batch = await api.post("/v1/jobs/batch", {"jobs": [{"type": "work"}]}, headers={"traceparent": caller})
    assert batch.json()["jobs"][0]["traceparent"] == caller
    assert (await api.enqueue())["traceparent"] is None


@pytest.mark.parametrize(
    ("variables", "exported"),
    [
        ({"OTEL_TRACES_EXPORTER": "console"}, "interlock"),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SERVICE_NAME": "queue"}, "queue"),
        ({"OTEL_TRACES_EXPORTER": "none"}, None),
        ({"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, None),
        ({}, None),
    ],
)
def test_the_standard_environment_variables_configure_it(
    tmp_path: Path, variables: dict[str, str], exported: str | None
) -> None:
    script = (
        "from interlock import tracing; tracing.configure()\nwith tracing.span('x', 'client') as s: print(s is None)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    first, _, rest = found.stdout.partition("\n")
    if exported is None:
        assert (first, rest) == ("True", "")
    else:
        span = json.loads(rest)
        assert (span["name"], span["resource"]["attributes"]["service.name"]) == ("x", exported)


def test_a_missing_exporter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "carrier-pigeon")
    with pytest.raises(Invalid, match="carrier-pigeon"):
        tracing.configure()
