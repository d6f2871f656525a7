"""Process logs: one JSON object per line on standard error; never an address, a header or a body."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

import msgspec
import structlog

MAX_VALUE_LENGTH: Final = 4_000


def configure(stream: TextIO = sys.stderr, level: int = logging.INFO) -> None:
    """Configure logging of Interlock and of its libraries."""
    shared: list[Any] = [_stamped, structlog.processors.format_exc_info, _short]
    lines = JsonLogHandler(stream)
    structlog.configure(
        processors=[*shared, _as_json],
        wrapper_class=_bound_logger(level, [*shared, _as_json]),
        logger_factory=lambda *names: lines,
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
    for name in ("httpx2", "httpcore2"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log URLs, which can contain secrets
    logging.getLogger("mcp").setLevel(logging.WARNING)  # it logs every message


def _bound_logger(level: int, processors: Sequence[Any]) -> Any:
    """Return a logger for this level. Info records, one per request, take a shorter path to the same output."""
    plain: Any = structlog.make_filtering_bound_logger(level)
    if level > logging.INFO:
        return plain

    class Brief(plain):  # type: ignore[misc]
        def info(self, event: str, **facts: Any) -> None:
            record: MutableMapping[str, Any] = {**self._context, **facts, "event": event}
            if "exc_info" not in facts:
                line = _as_json(self, "info", _stamped(self, "info", record))
                if len(line) <= MAX_VALUE_LENGTH:  # so no value in it is longer
                    self._logger.info(line)
                    return
            for process in processors:
                record = process(self, "info", record)
            self._logger.info(record)

    return Brief


class JsonLogHandler:
    """Log output. Info lines are buffered and written once per event loop iteration.

    Every write releases the interpreter lock, and getting it again costs far more than the write itself.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: list[str] = []
        self._turn: asyncio.AbstractEventLoop | None = None  # the loop whose next iteration flushes

    def info(self, line: str) -> None:
        self._waiting.append(line)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread without one
            self.flush()
            return
        if self._turn is not loop:
            self._turn = loop
            loop.call_soon(self.flush)

    def warning(self, line: str) -> None:
        """Write immediately, with the buffered lines: the process may end before the next iteration."""
        self._waiting.append(line)
        self.flush()

    debug = msg = info
    error = critical = exception = fatal = warn = warning

    def flush(self) -> None:
        lines, self._waiting, self._turn = self._waiting, [], None
        if lines:
            self._stream.write("\n".join(lines) + "\n")
            self._stream.flush()


def _stamped(logger: Any, name: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the level and the time."""
    record["level"] = "warning" if name == "warn" else "error" if name == "exception" else name
    record["at"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    return record


def _short(logger: Any, name: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Truncate long values, because callers control some of them."""
    for key, value in record.items():
        if isinstance(value, str) and len(value) > MAX_VALUE_LENGTH:
            record[key] = value[:MAX_VALUE_LENGTH] + "…"
    return record


def _as_json(logger: Any, name: str, record: MutableMapping[str, Any]) -> str:
    """Encode as ASCII: other characters can end a line for some log readers, or fail to decode."""
    try:
        text = msgspec.json.encode(record, enc_hook=repr).decode()
    except UnicodeEncodeError:  # a lone surrogate
        text = ""
    return text if text.isascii() and text else json.dumps(record, default=repr)
