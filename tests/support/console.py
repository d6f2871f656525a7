"""Console sessions in documents: their commands are run, and must print what the document shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interlock.config import PREFIX

ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
SESSION: Final = re.compile(r"```console\n(.*?)```", re.DOTALL)
COMMAND: Final = re.compile(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def environment(**more: str) -> dict[str, str]:
    """The variables of a user who has the commands in the path, and no settings but these."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return found | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"} | more


def replay(text: str, directory: Path, variables: Mapping[str, str]) -> int:
    """Run the commands of all sessions of a document in order; return how many there were."""
    here: dict[str, str] = {}  # ids of the document, and what they are in this run
    shown = COMMAND.findall("".join(SESSION.findall(text)))
    for command, expected in shown:
        for id, own in here.items():
            command = command.replace(id, own)
        done = subprocess.run(
            command, shell=True, cwd=directory, env=variables, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        assert without_ids_and_times(done.stdout) == without_ids_and_times(expected), f"{command}: {done.stderr}"
        here |= zip(ID.findall(expected), ID.findall(done.stdout), strict=True)
    return len(shown)


def without_ids_and_times(text: str) -> list[str]:
    return TIME.sub("TIME", ID.sub("ID", text)).split()
