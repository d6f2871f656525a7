"""The directory of a job: its payload and prompt as files, the directory the command runs in, and its artifacts."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from interlock.agent_cli.process import base_environment
from interlock.sdk import serialization
from interlock.sdk.exceptions import Fail

MAX_FILES: Final = 100
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1  # of Linux
GIT_SECONDS: Final = 300.0
_PLACE: Final = re.compile(r"\{(\w+)\}")


class WorkDirectory:
    """`ROOT/JOB_ID`, kept across attempts: `payload.json`, `prompt.txt`, `work/` and the adapter's own files."""

    def __init__(self, root: Path, job_id: str, repository: Path | None) -> None:
        self.path = root.absolute() / job_id
        self.work = self.path / "work"
        self.payload_file, self.prompt_file = self.path / "payload.json", self.path / "prompt.txt"
        self._repository, self._is_made = repository, self.path / "worktree"
        self._branch = f"interlock/{job_id}"
        # In a worktree, a directory of the repository may have this name.
        self.artifacts = self.path / "artifacts" if repository is not None else self.work / "artifacts"

    def prepare(self, payload: str) -> None:
        """Make what is missing, and write the payload, which is JSON text."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._repository is not None and not self._is_made.exists():
            self._add_worktree()
            self._is_made.touch()
        self.work.mkdir(exist_ok=True)
        self.artifacts.mkdir(exist_ok=True)
        self.payload_file.write_text(payload)

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yield name and path of each regular file below `artifacts/`; symbolic links are not followed."""
        found = 0
        for directory, _, names in os.walk(self.artifacts):
            for name in sorted(names):
                path = Path(directory) / name
                if stat.S_ISREG(path.lstat().st_mode) and found < MAX_FILES:
                    found += 1
                    yield str(path.relative_to(self.artifacts)), path

    def remove(self) -> None:
        """Delete the directory; the branch of a worktree stays."""
        if self._repository is not None:
            self._git("worktree", "remove", "--force", str(self.work), check=False)
        shutil.rmtree(self.path, ignore_errors=True)

    @staticmethod
    def check(repository: Path) -> None:
        """Reject a directory that is not in a git repository."""
        if subprocess.run(["git", "-C", str(repository), "rev-parse"], capture_output=True, check=False).returncode:
            raise ValueError(f"worktree {repository} is not a git repository")

    def _add_worktree(self) -> None:
        if (self.work / ".git").exists():  # a worker was killed while it made this
            shutil.rmtree(self.work)
        known = self._git("rev-parse", "--verify", "--quiet", f"refs/heads/{self._branch}", check=False) == 0
        new = [] if known else ["-b", self._branch]
        self._git("worktree", "add", "--force", "--force", *new, str(self.work), *([self._branch] if known else []))

    def _git(self, *words: str, check: bool = True) -> int:
        done = subprocess.run(
            ["git", "-C", str(self._repository), *words],
            capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS, check=False,
            stdin=subprocess.DEVNULL, env=base_environment(),  # hooks of the repository see it
        )  # fmt: skip
        if check and done.returncode != 0:
            raise RuntimeError(f"git {words[0]} failed: {done.stderr.strip()[:500]}")
        return done.returncode


def prompt_of(payload: Any, text: str, template: str | None) -> str:
    """Return the prompt: the template filled in, the payload if it is text, its member `prompt`, or its JSON text."""
    if template is not None:
        return fill(template, payload)
    if isinstance(payload, str):
        return payload
    if isinstance(payload, dict) and isinstance(payload.get("prompt"), str):
        return str(payload["prompt"])
    return text


def fill(template: str, payload: Any) -> str:
    """Replace `{name}` by that member of the payload, if it has one."""
    members = payload if isinstance(payload, dict) else {}

    def value(found: re.Match[str]) -> str:
        if found[1] not in members:
            return found[0]
        given = members[found[1]]
        return given if isinstance(given, str) else serialization.encode(given)

    return _PLACE.sub(value, template)


def argument(template: str, payload: Any, prompt: str) -> str:
    """Fill in an argument, also `{prompt}`; reject a value that the command would read as an option."""
    members = payload if isinstance(payload, dict) else {}
    made = fill(template, {"prompt": prompt, **members}).encode(errors="replace").decode()
    if made.startswith("-") and not template.startswith("-"):
        raise Fail(f"argument {template!r} would become the option {made[:50]!r}", kind="invalid_payload")
    if "\0" in made or len(made.encode()) > MAX_ARGUMENT_BYTES:
        reason = "contains a null character" if "\0" in made else f"has more than {MAX_ARGUMENT_BYTES} bytes"
        raise Fail(f"argument {template!r} {reason}: read the payload from its file", kind="invalid_payload")
    return made
