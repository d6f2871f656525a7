"""The Python reference matches the docstrings."""

from __future__ import annotations

import interlock
from tests.support.reference import PAGE, render


def test_the_reference_matches_the_docstrings() -> None:
    assert PAGE.read_text() == render(), "write it anew: python -m tests.support.reference"


def test_every_public_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in interlock.__all__ if f"## `interlock.{name}`" not in page] == []
