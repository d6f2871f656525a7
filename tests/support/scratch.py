"""Where tests keep files: in memory if there is room, because a disk makes each of many thousand commits wait."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

MEMORY: Final = Path("/dev/shm")
LEAST_BYTES: Final = 4 << 30
LONG: Final = "INTERLOCK_TEST_LONG"


def use_memory() -> None:
    """Put temporary files of this process and its children into memory. The long form stays on the disk."""
    if os.environ.get(LONG) or os.environ.get("TMPDIR") or not MEMORY.is_dir() or not os.access(MEMORY, os.W_OK):
        return
    if os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:  # a copy of PostgreSQL's programs may run from there
        return
    if shutil.disk_usage(MEMORY).free >= LEAST_BYTES:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None  # decided anew
