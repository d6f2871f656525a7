"""Writes `transcripts/`: what the real agent CLIs print, for the short form of the tests.

unshare -n python -m tests.agent_cli.record
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from interlock.agent_cli.adapter import Setup
from interlock.agent_cli.runner import ADAPTERS
from tests.agent_cli import isolated
from tests.agent_cli.fake_models import FakeModels
from tests.agent_cli.real_clis import cache_directory, installed
from tests.agent_cli.shell import SHELL, shell

TRANSCRIPTS: Final = Path(__file__).with_name("transcripts")
SESSION: Final = "3f0c5c2e-0000-4000-8000-000000000000"
UNKNOWN: Final = "01890000-0000-7000-8000-000000000000"
RESET: Final = 1_900_000_000
SECONDS: Final = 240.0


class Case(NamedTuple):
    """One run of a CLI, and how the model answers it."""

    adapter: str
    replies: list[dict[str, Any]]
    words: Sequence[str] = ()
    environment: Mapping[str, str] | None = None
    session: str | None = None
    approve_tools: str | None = None


def rejected(status: int, error: dict[str, Any], **headers: str) -> list[dict[str, Any]]:
    return [{"status": status, "fails": 99, "error": error, "headers": headers}]


CASES: Final = {
    **{f"{one}-success": Case(one, [{"text": "hello"}]) for one in SHELL},
    **{f"{one}-tool": Case(one, [shell(one, "echo made"), {"text": "finished"}], SHELL[one][2]) for one in SHELL},
    **{f"{one}-unknown-session": Case(one, [{"text": "hello"}], session=UNKNOWN) for one in SHELL},
    "claude-limited": Case("claude", rejected(429, {"type": "error", "error": {"type": "rate_limit_error"}})),
    "claude-limited-with-reset": Case(
        "claude",
        rejected(429, {"type": "error", "error": {"type": "rate_limit_error"}}, **{
            "anthropic-ratelimit-unified-status": "rejected", "anthropic-ratelimit-unified-reset": str(RESET),
            "anthropic-ratelimit-unified-representative-claim": "five_hour",
        }),
        environment={"ANTHROPIC_API_KEY": "", "CLAUDE_CODE_OAUTH_TOKEN": "sk-ant-oat01-fake-token"},
    ),
    "claude-deferred": Case(
        "claude", [{"tools": [*shell("claude", "echo 1")["tools"], *shell("claude", "echo 2", "toolu_2")["tools"]]}],
        approve_tools="Bash",
    ),
    "claude-unauthorized": Case("claude", rejected(401, {"type": "error", "error": {"type": "authentication_error"}})),
    "codex-limited": Case("codex", rejected(429, {"error": {"type": "usage_limit_reached"}})),
    "codex-limited-with-reset": Case(
        "codex", rejected(429, {"error": {"type": "usage_limit_reached", "resets_at": RESET}})
    ),
    "codex-unauthorized": Case("codex", rejected(401, {"error": {"type": "invalid_request_error"}})),
    "gemini-limited": Case("gemini", rejected(429, {"error": {"code": 429, "status": "RESOURCE_EXHAUSTED"}})),
    "gemini-unauthorized": Case("gemini", rejected(401, {"error": {"code": 401, "status": "UNAUTHENTICATED"}})),
}  # fmt: skip


def record(name: str, case: Case, bin: Path, place: Path) -> None:
    (place / "work" / "artifacts").mkdir(parents=True)
    (place / "prompt").write_text("Say hello")
    models = FakeModels(case.replies, place / "models.log")
    given = {"adapter": case.adapter, "bin": bin, "environment": case.environment or {}, "words": case.words}
    options = isolated.options(given, models.url, place)
    setup = Setup(options.command, place, case.session, SESSION, approve_tools=case.approve_tools)
    with (place / "prompt").open() as prompt:
        done = subprocess.run(
            ADAPTERS[case.adapter](setup).command(), cwd=place / "work", stdin=prompt, capture_output=True,
            env={"PATH": os.environ["PATH"], "TZ": "UTC", **options.environment}, timeout=SECONDS,
        )  # fmt: skip
    models.close()

    def lines(written: bytes) -> list[str]:
        text = written.decode().replace(str(place), "/place").replace(models.url, "http://127.0.0.1:1")
        return [line for line in text.splitlines() if "file://" not in line]  # stack traces

    recorded = {"exit": done.returncode, "stdout": lines(done.stdout), "stderr": lines(done.stderr)}
    (TRANSCRIPTS / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as directory:
            record(name, case, installed(cache_directory()), Path(directory))
