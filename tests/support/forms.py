"""The short form of the tests, which `make test` runs, and the long one of `make prove`."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from tests.support.scratch import LONG
from tests.support.stores import ENGINES

IS_LONG: Final = bool(os.environ.get(LONG))


def on_one_engine(items: Sequence[pytest.Item], directory: Path) -> list[pytest.Item]:
    """In the short form, keep one of the two engines for each test of a directory; its name decides which.

    For layers that only call the client: about half of their tests run on either engine. A test that is selected on
    one engine only is kept.
    """
    by_test: dict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    if not IS_LONG:
        for item in items:
            if directory in item.path.parents and isinstance(item, pytest.Function) and _engine_of(item) in ENGINES:
                name = item.name.replace(_engine_of(item), "*", 1)
                by_test[str(item.path), name].append(item)
    left_out = set()
    for (path, name), pair in by_test.items():
        if len(pair) == len(ENGINES):
            left_out.add(pair[crc32(f"{Path(path).name}::{name}".encode()) % len(ENGINES)])
    return [item for item in items if item not in left_out]


def _engine_of(item: pytest.Function) -> str:
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return next((value for value in values if value in ENGINES), "")
