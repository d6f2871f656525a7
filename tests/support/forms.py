"""The short form of the tests, which `make test` runs, and the long one of `make prove`."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from tests.support.scratch import LONG
from tests.support.stores import ENGINES

IS_LONG: Final = bool(os.environ.get(LONG))

ABOVE_THE_STORE: Final = frozenset(
    {"adapters", "agent_cli", "api", "cli", "contract_clients", "dashboard", "engine", "examples", "integrations", "sdk", "worker"}
)  # fmt: skip
"""Directories of layers that only call the layer below."""
WAYS: Final = {"worker": (*ENGINES, "embedded", "over http")}
"""What those tests are repeated over besides the engines."""
CONTRACT: Final = "contract"
SHARDS: Final = "shards"
SHARDS_ONE_IN: Final = 6


def left_out_of_the_short_form(items: Sequence[pytest.Item], tests: Path) -> set[pytest.Item]:
    """Return the tests that only repeat others; in the long form, none.

    Above the store, a test keeps one of its variants (engine, way to the server), which its name decides: about half of
    the tests run on either engine, and the stores themselves have contract tests on both. One contract test in six
    also runs over shards. A test that is selected in one variant only is kept.
    """
    if IS_LONG:
        return set()
    by_test: dict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        directory = item.path.relative_to(tests).parts[0]
        names: Sequence[str] = WAYS.get(directory, ENGINES) if directory in ABOVE_THE_STORE else ()
        names = (*ENGINES, SHARDS) if directory == CONTRACT else names
        if of := _variant(item, names):
            by_test[directory, str(item.path), _without(item, of)].append(item)
    left_out: set[pytest.Item] = set()
    for (directory, path, name), variants in by_test.items():
        number = crc32(f"{Path(path).name}::{name}".encode())
        if directory == CONTRACT:
            if len(variants) > 1 and number % SHARDS_ONE_IN:
                left_out.update(item for item in variants if _variant(item, [SHARDS]))
        else:
            left_out.update({*variants} - {variants[number % len(variants)]})
    return left_out


def _variant(item: pytest.Item, of: Sequence[str]) -> list[str]:
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return [value for value in values if isinstance(value, str) and value in of]


def _without(item: pytest.Item, variant: Sequence[str]) -> str:
    name = item.name
    for one in variant:
        name = name.replace(one, "*", 1)
    return name


def chance(seed: int = 2027) -> random.Random:
    """The same in every run of the short form, which must not fail by an unlucky draw; another in the long one."""
    return random.Random() if IS_LONG else random.Random(seed)
