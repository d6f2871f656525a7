"""A hook of claude that runs before a tool call: apply the decision about it, or defer it until there is one.

A program without imports of ours: `python -I -S claude_hook.py DECISIONS CALLS`, with the call on standard input. If it
fails, it exits with 2, which denies the call: with any other exit code claude would run it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def decide(call: dict[str, Any], decisions: dict[str, Any]) -> dict[str, Any]:
    """Return the output of the hook for a call."""
    decision = decisions.get(call.get("tool_use_id", ""))
    made: dict[str, Any] = {"hookEventName": "PreToolUse", "permissionDecision": "defer"}
    if decision is not None:
        made["permissionDecision"] = "allow" if decision["approved"] else "deny"
        made["permissionDecisionReason"] = decision.get("reason") or "decided by an approver"
        if decision.get("note"):
            made["additionalContext"] = decision["note"]
    return {"hookSpecificOutput": made}


def main(decisions: Path, calls: Path) -> None:
    call = json.load(sys.stdin)
    made = decide(call, json.loads(decisions.read_text()))
    if made["hookSpecificOutput"]["permissionDecision"] == "defer":
        asked = {"id": call.get("tool_use_id"), "name": call.get("tool_name"), "input": call.get("tool_input")}
        with calls.open("a") as file:
            file.write(json.dumps(asked) + "\n")
    print(json.dumps(made))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except Exception as error:
        print(f"an approval of this call cannot be requested: {error!r}", file=sys.stderr)
        sys.exit(2)
