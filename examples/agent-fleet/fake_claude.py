"""A stand-in for the claude CLI that needs no key: it prints the same JSON lines, and asks before it runs a command."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--session-id")
parser.add_argument("--resume")
parser.add_argument("--settings", type=json.loads)
options, _ = parser.parse_known_args()
session = options.session_id or options.resume


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def allowed(command: str) -> str:
    """Ask the hook, as claude does before each call of a tool: allow, deny, or defer until a person has decided."""
    if options.settings is None:
        return "allow"
    (hook,) = options.settings["hooks"]["PreToolUse"][0]["hooks"]
    call = {"tool_use_id": "call-1", "tool_name": "Bash", "tool_input": {"command": command}}
    ran = subprocess.run(
        hook["command"], shell=True, input=json.dumps(call), capture_output=True, text=True, check=True
    )
    return str(json.loads(ran.stdout)["hookSpecificOutput"]["permissionDecision"])


usage = {"input_tokens": 800, "output_tokens": 150}
result = {"type": "result", "session_id": session, "is_error": False, "usage": usage, "total_cost_usd": 0.02}
memory = Path("session.txt")
prompt = memory.read_text() if options.resume else sys.stdin.read()
memory.write_text(prompt)
say(type="system", subtype="init", session_id=session, model="fake")
say(
    type="assistant",
    message={"id": "m1", "content": [{"type": "text", "text": "I change one line and run the tests."}]},
)

decision = allowed("make test")
if decision == "defer":
    deferred = {"id": "call-1", "name": "Bash", "input": {"command": "make test"}}
    say(**result, stop_reason="tool_deferred", deferred_tool_use=deferred)
    sys.exit()
issue = prompt.partition(": ")[2].strip()
Path("artifacts/change.txt").write_text(f"a change for: {issue}\n")
say(**result, result=f"fixed: {issue}" if decision == "allow" else f"stopped: I may not run the tests for {issue}")
