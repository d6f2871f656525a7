"""Worker logs: messages with fields, through the standard library, so that the program configures the output."""

from __future__ import annotations

import logging
from typing import Any

import structlog


def logger(**facts: Any) -> Any:
    """Return a logger that adds these fields to every record."""
    return structlog.wrap_logger(
        logging.getLogger("interlock.worker"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    ).bind(**facts)
