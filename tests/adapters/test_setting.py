"""The setting that turns faces on."""

from __future__ import annotations

from pathlib import Path

import pytest

from interlock import config
from interlock.api.adapters import ADAPTERS
from interlock.cli.serve import options
from interlock.errors import Invalid


def test_no_adapter_is_on_unless_it_is_named(tmp_path: Path) -> None:
    assert config.load({}, environ={}, directory=tmp_path).faces == ()


def test_adapters_are_named_in_a_list_or_separated_by_commas(tmp_path: Path) -> None:
    given = config.load({}, environ={"INTERLOCK_FACES": "moonmind, codeq,codeq"}, directory=tmp_path)
    assert given.faces == ("moonmind", "codeq")
    (tmp_path / "interlock.toml").write_text('faces = ["codeq"]\n')
    listed = config.load({}, environ={}, directory=tmp_path)
    assert options(listed).faces == ("codeq",)
    assert config.load({}, environ={"INTERLOCK_FACES": ""}, directory=tmp_path).faces == ()


@pytest.mark.parametrize("value", ["nobody", "codeq,nobody"])
def test_an_unknown_adapter_is_rejected(tmp_path: Path, value: str) -> None:
    with pytest.raises(Invalid) as rejection:
        config.load({}, environ={"INTERLOCK_FACES": value}, directory=tmp_path)
    assert rejection.value.pointer == "/faces"


def test_every_adapter_that_can_be_named_can_be_served() -> None:
    assert sorted(ADAPTERS) == sorted(config.ADAPTERS)
