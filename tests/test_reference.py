"""The Python reference matches the docstrings."""

from __future__ import annotations

import inspect
import re
from enum import Enum

import pytest

import interlock
from tests.support.reference import GROUPS, PAGE, entries_of, render


def test_the_reference_matches_the_docstrings() -> None:
    assert PAGE.read_text() == render(), "write it anew: python -m tests.support.reference"


def test_every_public_name_is_on_the_page() -> None:
    page = PAGE.read_text()
    assert [name for name in interlock.__all__ if f"## `interlock.{name}`" not in page] == []


@pytest.mark.parametrize("name", [*interlock.__all__, *GROUPS])
def test_every_public_name_and_each_of_its_methods_has_a_docstring(name: str) -> None:
    kind = GROUPS.get(name) or getattr(interlock, name)
    assert kind.__doc__
    if inspect.isclass(kind):
        methods = [(n, one) for n, one in entries_of(kind) if inspect.isfunction(one) or isinstance(one, property)]
        assert [n for n, one in methods if not one.__doc__] == []


def test_the_page_has_the_values_of_enums_and_the_tree_of_errors_and_keeps_long_signatures_in_their_block() -> None:
    page = PAGE.read_text()
    enums = [kind for name in interlock.__all__ if inspect.isclass(kind := getattr(interlock, name))]
    for kind in enums:
        if issubclass(kind, Enum):
            assert f"`{list(kind)[-1].value}`." in page, kind
    assert all(f"── {name} " in page for name in ("LeaseLost", "LimitReached", "AlreadyFinished"))
    assert re.findall(r"\n    [^\n]+\n[^\s\n][^\n]*", page) == []
