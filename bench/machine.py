"""What the figures of a run depend on besides Interlock; nothing here names the machine."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime

import apsw
import asyncpg

FSYNCS = 100


def facts() -> dict[str, str | float]:
    """Collected before the first run, so that the load is that of others."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count() or 0,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "sqlite": f"{apsw.sqlite_lib_version()} (apsw {apsw.apsw_version()})",
        "asyncpg": asyncpg.__version__,
        "load_before": round(os.getloadavg()[0], 2),
        "fsync_ms": round(fsync_seconds() * 1000, 3),
    }


def fsync_seconds() -> float:
    """The median time to make 4 KiB at the end of a file durable, where the databases will be."""
    taken = []
    with tempfile.TemporaryFile() as file:
        for _ in range(FSYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken)
