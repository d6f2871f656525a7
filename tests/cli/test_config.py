"""`interlock config show`: the effective settings, their sources, and nothing secret."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from interlock import config
from interlock.cli.config import masked
from interlock.errors import Invalid
from tests.support.commands import run_command


def encoded(directory: Path, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
    return run_command(["config", "show", *arguments], cwd=directory, env=clean | environ)


def test_every_setting_names_its_source_and_secrets_are_masked(tmp_path: Path) -> None:
    (tmp_path / "interlock.toml").write_text(
        'tenant = "acme"\nport = 9000\nauth = ["jwt"]\n'
        '[[issuers]]\nissuer = "https://id.example.com"\njwks = {keys = [{kty = "oct", k = "c2VjcmV0LWtleQ"}]}\n'
    )
    (tmp_path / "url").write_text("postgresql://app:hunter2@db.example.com/jobs\n")
    done = encoded(tmp_path, "--json", INTERLOCK_DATABASE_FILE=str(tmp_path / "url"), INTERLOCK_PORT="9001")
    settings = json.loads(done.stdout)
    assert settings["database"] == {
        "value": "postgresql://app:***@db.example.com/jobs",
        "source": "INTERLOCK_DATABASE_FILE",
    }
    assert settings["port"] == {"value": 9001, "source": "INTERLOCK_PORT"}
    assert settings["tenant"] == {"value": "acme", "source": "interlock.toml"}
    assert settings["host"] == {"value": "127.0.0.1", "source": "default"}
    plain = encoded(tmp_path, "--tenant", "other", INTERLOCK_DATABASE_FILE=str(tmp_path / "url")).stdout
    assert "--tenant" in plain
    for secret in ("hunter2", "c2VjcmV0LWtleQ"):
        assert secret not in done.stdout + plain


def test_an_invalid_setting_is_rejected_without_a_traceback(tmp_path: Path) -> None:
    done = encoded(tmp_path, INTERLOCK_PORT="many")
    assert (done.returncode, done.stderr) == (4, "interlock: port must be a number, not 'many'\n")
    with pytest.raises(Invalid, match="database must be a text, not 5"):
        config.load({"database": 5}, environ={}, directory=tmp_path)
    (tmp_path / config.FILE).write_bytes(b"\xff")
    with pytest.raises(Invalid, match=r"interlock\.toml cannot be read"):
        config.load({}, environ={}, directory=tmp_path)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("postgresql://app@h/db", "postgresql://app@h/db"),
        ("postgresql://app:p%40ss@h:5432,i:5433/db", "postgresql://app:***@h:5432,i:5433/db"),
        ("postgresql://app:a@b@h/db", "postgresql://app:***@h/db"),
        ("postgresql://h/db?user=app&password=pw", "postgresql://h/db?user=app&password=***"),
        ("postgresql://[broken:pw@h/db", "***"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_no_password_of_a_url_is_printed(value: str, expected: str) -> None:
    assert masked(value) == expected


@pytest.mark.parametrize(
    ("limits", "pointer"),
    [
        ('{"payload": "much"}', "/limits/payload"),
        ('{"payload": true}', "/limits/payload"),
        ('{"payload": 1023}', "/limits/payload"),
        ('{"body": 67108865}', "/limits/body"),
        ('{"event": 8191}', "/limits/event"),
        ('{"error": 16383}', "/limits/error"),
        ('{"batch": 1001}', "/limits/batch"),
        ('{"names": 5}', "/limits"),
        ("[]", "/limits"),
        ("{", "/limits"),
    ],
)
def test_an_invalid_limit_is_rejected(tmp_path: Path, limits: str, pointer: str) -> None:
    with pytest.raises(Invalid) as caught:
        config.load({}, environ={"INTERLOCK_LIMITS": limits}, directory=tmp_path)
    assert caught.value.pointer == pointer


def test_limits_are_read_from_the_file_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / config.FILE).write_text("[limits]\npayload = 2048\n")
    assert config.load({}, environ={}, directory=tmp_path).limits == {"payload": 2048}
    given = {"INTERLOCK_LIMITS": '{"batch": 10}'}
    assert config.load({}, environ=given, directory=tmp_path).limits == {"batch": 10}


def test_the_address_of_a_trace_has_a_place_for_its_id() -> None:
    url = "https://tempo.example.com/trace/{trace_id}?org=1"
    assert config.load({"trace_url": url}).trace_url == url
    for wrong in (
        "https://tempo.example.com",
        "javascript:{trace_id}",
        "https://{trace_id}",
        url + "{trace_id}",
        "",
        7,
    ):
        with pytest.raises(Invalid, match="trace_url"):
            config.load({"trace_url": wrong})
