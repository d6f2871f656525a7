"""A worker's log: facts beside a message, through the standard library, so that a program decides where they go."""

from __future__ import annotations

import logging
from typing import Any

import structlog


def logger(**facts: Any) -> Any:
    """A logger that adds these facts to every record."""
    return structlog.wrap_logger(
        logging.getLogger("interlock.worker"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    ).bind(**facts)
