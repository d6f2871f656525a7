"""Loops that last as long as a file of tests, so that what is costly to open can last as long."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def share_the_loop_of_their_file(tests: Iterable[pytest.Item]) -> None:
    """Their async fixtures have to ask for the same loop: `pytest_asyncio.fixture(loop_scope="module")`."""
    for test in tests:
        test.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
