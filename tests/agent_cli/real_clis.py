"""The real agent CLIs, installed from npm once for all workers of a test run."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

VERSIONS: Final = {
    "@anthropic-ai/claude-code": "2.1.197",
    "@openai/codex": "0.169.0",
    "@google/gemini-cli": "0.61.0",
}
INSTALL_SECONDS: Final = 1800.0


def installed(cache: Path) -> Path:
    """Return the directory of the commands; install them if another process has not."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = " ".join(f"{name}@{version}" for name, version in VERSIONS.items())
        stamp = cache / "installed"
        if not stamp.exists() or stamp.read_text() != wanted:
            (cache / "package.json").write_text("{}")
            npm = shutil.which("npm")
            assert npm is not None, "npm is needed: install Node.js"
            # Scripts of the packages do not run; claude is then in the package of its platform.
            command = [npm, "install", "--no-audit", "--no-fund", "--omit=dev", "--ignore-scripts", *wanted.split()]
            subprocess.run(command, cwd=cache, check=True, capture_output=True, timeout=INSTALL_SECONDS)
            native = next((cache / "node_modules/@anthropic-ai").glob("claude-code-*/claude"))
            command_file = cache / "node_modules/.bin/claude"
            command_file.unlink(missing_ok=True)
            command_file.symlink_to(native)
            stamp.write_text(wanted)
    return cache / "node_modules/.bin"


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "interlock-agent-clis"
