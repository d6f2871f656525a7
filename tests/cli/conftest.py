"""Commands call only the client: in the short form each test runs on one engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forms import on_one_engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = on_one_engine(items, Path(__file__).parent)
