"""How a model calls the tool of each agent CLI that runs a command."""

from __future__ import annotations

from typing import Any

# Name of the tool, its argument, and the words of the command line that allow it without asking.
SHELL: dict[str, tuple[str, str, list[str]]] = {
    "claude": ("Bash", "command", ["--allowedTools", "Bash"]),
    "codex": ("exec_command", "cmd", ["--dangerously-bypass-approvals-and-sandbox"]),
    "gemini": ("run_shell_command", "command", ["--yolo"]),
}


def shell(adapter: str, command: str, id: str = "toolu_1") -> dict[str, Any]:
    """Return a reply of the model that runs a command."""
    name, argument, _ = SHELL[adapter]
    given = {argument: command} if adapter == "codex" else {argument: command, "description": "run it"}
    return {"text": "I will run it.", "tools": [{"id": id, "name": name, "input": given}]}
