"""Loops that last for several tests, so that what is costly to open can last as long."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def share_the_loop_of_their_file(tests: Iterable[pytest.Item]) -> None:
    """Their async fixtures have to ask for the same loop: `pytest_asyncio.fixture(loop_scope="module")`."""
    for test in tests:
        test.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


def share_one_loop(tests: Iterable[pytest.Item]) -> None:
    """The same for all tests of the process, with the scope `session`."""
    for test in tests:
        test.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
