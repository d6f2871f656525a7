"""Logs: one JSON object a line for any input, and never a secret (S45)."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from interlock.cli import logs
from interlock.storage.contract import Fitness
from tests.api.rig import Api

SECRET = "correct-horse-battery-staple"


@pytest.fixture
def engine() -> str:
    return "sqlite"


@pytest.fixture(autouse=True)  # before the service, which takes its logger as it begins
def log() -> Iterator[io.StringIO]:
    """Where the lines go while a test runs."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure(stream)
    yield stream
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def lines(log: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


async def test_a_request_is_one_log_line_with_its_route_and_no_path(api: Api, log: io.StringIO) -> None:
    job = await api.enqueue(payload={"secret": SECRET})
    await api.get(f"/v1/jobs/{job['id']}?x={SECRET}", headers={"authorization": f"Bearer {SECRET}", "cookie": SECRET})
    await api.get(f"/{SECRET}")
    seen = [line for line in lines(log) if line["event"] == "request"]
    assert [(line["method"], line["route"], line["status"]) for line in seen] == [
        ("POST", "/v1/jobs", 201),
        ("GET", "/v1/jobs/{job_id}", 422),
        ("GET", "-", 404),
    ]
    assert seen[0]["tenant"] == api.tenant
    assert seen[1]["code"] == "invalid"
    assert SECRET not in log.getvalue()
    assert job["id"] not in log.getvalue()


async def test_a_trace_id_is_logged(api: Api, log: io.StringIO) -> None:
    await api.get("/healthz", headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "x-request-id": "r1"})
    (line,) = [line for line in lines(log) if line["event"] == "request"]
    assert (line["trace_id"], line["request_id"]) == ("a" * 32, "r1")


def test_unusual_text_stays_on_one_line_and_is_truncated(log: io.StringIO) -> None:
    for odd in ("a\r\nb", "\x1b[31m", '"} {"event": "fake', "x" * 1_000_000, "\u2028"):
        structlog.get_logger().info("said", text=odd)
        logging.getLogger("other").warning("%s", odd)
    structlog.get_logger().info("said", text="\ud800")
    assert len(log.getvalue().split("\n")) == 12
    assert {line["event"] for line in lines(log)} >= {"said"}
    assert "fake" not in [line["event"] for line in lines(log)]
    assert max(len(line) for line in log.getvalue().split("\n")) < 10_000


async def test_a_defect_is_logged_with_its_request_and_not_returned_to_the_caller(
    api: Api, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> Fitness:
        raise ZeroDivisionError(SECRET)

    monkeypatch.setattr(api.engine.store, "fitness", broken, raising=False)
    response = await api.get("/readyz", headers={"x-request-id": "r2"})
    assert response.status_code == 500
    assert response.json()["code"] == "internal"
    assert SECRET not in response.text
    (line,) = [line for line in lines(log) if line["event"] == "defect"]
    assert line["request_id"] == "r2"
    assert "ZeroDivisionError" in line["exception"]


async def test_lines_of_one_loop_iteration_are_written_together_and_a_warning_immediately(
    log: io.StringIO,
) -> None:
    given = structlog.get_logger()
    given.info("one")
    given.info("two")
    assert log.getvalue() == ""
    await asyncio.sleep(0)
    assert [line["event"] for line in lines(log)] == ["one", "two"]
    given.info("three")
    given.warning("four")
    assert [(line["event"], line["level"]) for line in lines(log)][2:] == [("three", "info"), ("four", "warning")]


def test_a_line_is_not_lost_when_its_event_loop_closes(log: io.StringIO) -> None:
    async def log_line(what: str) -> None:
        structlog.get_logger().info(what)

    asyncio.run(log_line("in a loop"))
    structlog.get_logger().info("without one")
    asyncio.run(log_line("in another"))
    assert [line["event"] for line in lines(log)] == ["in a loop", "without one", "in another"]


def test_an_info_record_may_have_an_exception_and_bound_fields(log: io.StringIO) -> None:
    try:
        raise ZeroDivisionError
    except ZeroDivisionError as error:
        structlog.get_logger().bind(part="x").info("said", exc_info=error)
    (line,) = lines(log)
    assert line["part"] == "x"
    assert "ZeroDivisionError" in line["exception"]
