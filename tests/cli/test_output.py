"""What is printed cannot steer a terminal, and is still what was written."""

from __future__ import annotations

import json

import msgspec
import pytest

from interlock.cli import output

NASTY = "\x1b[2J \x07 \x7f \x9b31m \u202e \u2028 \U000e0001 tab\there ünd 日本 🙂"


def raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(text, ensure_ascii=False).encode())


def test_a_json_document_is_unchanged_and_free_of_terminal_escapes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.print_json({"text": NASTY, "kept": raw(NASTY)})
    encoded = capsys.readouterr().out
    assert json.loads(encoded) == {"text": NASTY, "kept": NASTY}
    assert all(c.isprintable() for c in encoded.replace("\n", ""))
    assert "ünd 日本 🙂" in encoded


def test_a_json_line_is_one_line_for_any_text() -> None:
    line = output.json_line({"text": NASTY, "kept": msgspec.Raw(b'{ "a":\n\t[1.50,\r\n 2] }')})
    assert json.loads(line) == {"text": NASTY, "kept": {"a": [1.5, 2]}}
    assert '"kept":{"a":[1.50,2]}' in line
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_text_is_printed_with_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_line(NASTY)
    output.table(["name"], [[NASTY]])
    output.facts({"name": NASTY, "list": [NASTY]})
    encoded = capsys.readouterr().out
    assert all(c.isprintable() for c in encoded.replace("\n", ""))
    assert "\\x1b[2J" in encoded
