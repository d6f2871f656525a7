"""Files that commands write: atomically, and readable only by their owner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from interlock.errors import Invalid


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name, and the place of one that has it, when everything is on disk."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise Invalid(f"{path} cannot be written: {error.strerror}", pointer="/output") from error
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        try:
            part.replace(path)
        except OSError as error:
            raise Invalid(f"{path} cannot be written: {error.strerror}", pointer="/output") from error
    finally:
        part.unlink(missing_ok=True)
