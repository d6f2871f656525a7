"""Every command explains itself, and takes what all commands take."""

from __future__ import annotations

import pytest

from interlock.cli.main import app
from tests.test_docs import commands


@pytest.mark.parametrize("command", commands())
def test_the_help_of_a_command_explains_it_and_its_options(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    app([*command.split(), "--help"], exit_on_error=False, result_action="return_value")
    encoded = capsys.readouterr().out
    usage, _, rest = encoded.partition("\n\n")
    assert f"interlock {command}" in usage
    assert len(rest.partition("\n\n")[0]) > 10
    for option in ("--database", "--tenant", "--json"):
        assert option in encoded
    assert "--empty-" not in encoded


@pytest.mark.parametrize("command", commands())
def test_every_option_has_a_description(command: str) -> None:
    _, chain, _ = app.parse_commands(command.split())
    options = [one for one in chain[-1].assemble_argument_collection() if one.show and one.name.startswith("--")]
    positional = {"POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD", "VAR_POSITIONAL"}
    named = [one for one in options if one.field_info.kind.name not in positional]
    assert named
    assert [one.name for one in named if not one.parameter.help] == []


def test_every_noun_has_a_description(capsys: pytest.CaptureFixture[str]) -> None:
    app(["--help"], exit_on_error=False, result_action="return_value")
    encoded = capsys.readouterr().out
    for noun in {command.split()[0] for command in commands()}:
        line = next(line for line in encoded.splitlines() if line.startswith(f"│ {noun} "))
        assert len(line.strip("│ ").removeprefix(noun).strip()) > 15, noun
