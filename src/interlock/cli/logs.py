"""Logs of a process: one JSON object a line, on standard error; never an address, a header or a body."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, TextIO

import msgspec
import structlog

LONGEST_VALUE: Final = 4_000


def configure(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Send our own records and those of the libraries below us the same way."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        _short,
    ]
    structlog.configure(
        processors=[*shared, _as_json],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _as_json,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    for name in ("httpx2", "httpcore2", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they tell addresses, and those can hold secrets
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it tells of the coming and going of every message


def _short(logger: Any, name: str, record: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """No line is endless, whatever somebody managed to get into it."""
    for key, value in record.items():
        if isinstance(value, str) and len(value) > LONGEST_VALUE:
            record[key] = value[:LONGEST_VALUE] + "…"
    return record


def _as_json(logger: Any, name: str, record: MutableMapping[str, Any]) -> str:
    """Nothing but ASCII: what some readers take for the end of a line, or cannot decode, comes as an escape."""
    try:
        text = msgspec.json.encode(record, enc_hook=repr).decode()
    except UnicodeEncodeError:  # a lone surrogate
        text = ""
    return text if text.isascii() and text else json.dumps(record, default=repr)
