"""An agent CLI for tests, with the output of claude or of a plain command. The prompt names what it does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def claude(prompt: str, words: list[str]) -> None:
    resumed = "--resume" in words
    session = words[words.index("--resume" if resumed else "--session-id") + 1]
    with Path("runs.log").open("a") as log:
        log.write(json.dumps({"session": session, "resumed": resumed, "prompt": prompt, "words": words}) + "\n")
    known = Path(f"session-{session}")
    if resumed and not known.exists():
        print(f"No conversation found with session ID: {session}", file=sys.stderr)
        say(type="result", subtype="error_during_execution", is_error=True, usage={}, total_cost_usd=0)
        sys.exit(1)
    action = known.read_text() if resumed else prompt
    known.write_text(action)
    say(type="system", subtype="init", session_id=session, model="fake")
    usage = {"input_tokens": 100, "output_tokens": 20}
    result = {"type": "result", "session_id": session, "usage": usage, "total_cost_usd": 0.5, "is_error": False}
    if action in ("quota", "uncoded") and not resumed:
        info = {"status": "rejected", "resetsAt": time.time() + 3600, "rateLimitType": "five_hour"}
        say(type="rate_limit_event", rate_limit_info=info)
        code = {"api_error_status": 429} if action == "quota" else {}  # the announcement is enough
        say(**result | {"is_error": True, "subtype": "success"} | code)
        sys.exit(1)
    if action == "busy" and not resumed:  # a rejection that names no reset
        say(**result | {"is_error": True, "subtype": "success", "api_error_status": 429})
        sys.exit(1)
    if action == "spend" and not resumed:  # the CLI ends by itself when its budget is spent
        cost = float(words[words.index("--max-budget-usd") + 1]) + 0.1
        say(**result | {"is_error": True, "subtype": "error_max_budget_usd", "total_cost_usd": cost})
        sys.exit(1)
    if action == "silent" and not resumed:
        say(type="assistant", message={"id": "m", "content": [], "usage": usage})
        signal.pause()
    if action == "broken":
        say(**result | {"is_error": True, "subtype": "error_during_execution"})
        sys.exit(1)
    if action == "tell":
        secret = os.environ["KEY"]
        say(type="assistant", message={"id": "m", "content": [{"type": "text", "text": secret}]})
        say(**result | {"result": secret, "structured_output": {"found": [secret], secret: 1}})
        return
    if action == "tool":
        tool(words, result, resumed)
    if action == "wait" and not resumed:
        Path("waiting").touch()
        signal.pause()
    if action == "split":
        sys.stdout.write('{"type":"assistant","mess{"type":"system","subtype":"other"}\n')
        sys.stdout.write('age":{"id":"m","content":[{"type":"text","text":"put together"}]}}\n')
    Path("artifacts/report.txt").write_text("the report")
    say(**result | {"result": f"done: {action}"})


def tool(words: list[str], result: dict[str, Any], resumed: bool) -> None:
    """Two tool calls in one turn, as the real CLI treats them: the hook is asked for both, only the last is kept."""
    settings = json.loads(words[words.index("--settings") + 1])
    hook = settings["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    decision: dict[str, Any] = {}
    for call in ("t1", "t2") if not resumed else ("t2",):
        asked = {"command": f"echo {call}", **({"key": os.environ["KEY"]} if "KEY" in os.environ else {})}
        given = {"tool_use_id": call, "tool_name": "Bash", "tool_input": asked}
        out = subprocess.run(hook, shell=True, input=json.dumps(given), capture_output=True, text=True, check=True)
        decision = json.loads(out.stdout)["hookSpecificOutput"]
        if decision["permissionDecision"] == "defer" and call == "t2":
            deferred = {"id": call, "name": "Bash", "input": asked}
            say(**result | {"stop_reason": "tool_deferred", "deferred_tool_use": deferred})
            sys.exit(0)
    say(**result | {"result": json.dumps(decision)})
    sys.exit(0)


def plain(prompt: str, words: list[str]) -> None:
    match prompt:
        case "environment":
            print(json.dumps(dict(os.environ)))
        case "bytes":
            os.write(1, b"caf\xe9 \xff\r\n")
        case "commit":
            Path("made.txt").write_text("made")
            subprocess.run(["git", "add", "made.txt"], check=True)
            name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
            subprocess.run(["git", *name, "commit", "-qm", "make it"], check=True)
            Path(os.environ["INTERLOCK_JOB_ARTIFACTS"], "log.txt").write_text("a log")
            print(Path("README").read_text())
        case "much":
            for _ in range(1600):
                os.write(1, b"x" * 65536)
            print("\nlast line")
        case "nearly":  # a secret where an event is cut
            print("x" * 995 + os.environ["KEY"])
            print("x" * 495 + os.environ["KEY"], file=sys.stderr)
            sys.exit(1)
        case "used":
            Path(os.environ["INTERLOCK_JOB_USAGE"]).write_text('{"usd": 0.25, "tokens": 7, "other": "x", "bad": -1}')
            print(os.environ.get("INTERLOCK_JOB_MAX_USD"))
        case "names":  # of which two are not valid for artifacts
            for file in (b"good", b"\xff", b"tab\there"):
                Path("artifacts", os.fsdecode(file)).write_text("content")
        case "arguments":
            print(json.dumps(words))
        case "tree":  # a child in its own session, whose parent has ended, and children that fork on
            program = "import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nos.fork()\nos.fork()\ntime.sleep(600)"
            subprocess.run([sys.executable, "-c", program], check=True)
            Path("waiting").touch()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        case "chain":  # processes that each start the next one in a session of its own, and end
            program = (
                "import os,time\nend=time.time()+600\nwhile time.time()<end:\n if os.fork(): os._exit(0)\n os.setsid()"
            )
            subprocess.run([sys.executable, "-c", program], check=True)
            Path("waiting").touch()
            time.sleep(600)
        case code:
            print("wrong", file=sys.stderr)
            sys.exit(int(code))


if __name__ == "__main__":
    kind, *rest = sys.argv[1:]
    {"claude": claude, "plain": plain}[kind](sys.stdin.read(), rest)
