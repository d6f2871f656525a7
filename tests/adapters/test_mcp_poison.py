"""A tool returns a result or rejects its input; the service never fails."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from interlock.faces.mcp.tools import TOOLS, Tool
from tests.adapters.test_mcp_http import called
from tests.api.rig import NEVER, Api

ODD: list[bytes] = [
    b"null", b"-1", b"12345678901234567890123", b'""', b'"nul\\u0000"', b'"\\ud800"', b'"\\u202e/../%2e%00\\n"',
    b"[[null]]", b'{"a":{"b":[]}}', b'"2030-13-45T99:00:00Z"', b'"' + b"x" * 5000 + b'"',
]  # fmt: skip
GOOD: dict[str, Any] = {
    "type": "t", "job_id": NEVER, "approval_id": NEVER, "fence": 1, "seq": 1, "data": 1, "error": {"message": "m"},
    "prompt": "p", "decision": "deny", "name": "n", "result": 1, "occurrence": 1, "state": "done", "topic": "t",
    "offset": 0, "chunks": [{"text": "c"}], "until": (datetime.now(UTC) + timedelta(hours=1)).isoformat(),
}  # fmt: skip
QUICK = {"run_job": {"wait_seconds": b"0"}}  # else each job that was made would be waited for


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_malformed_arguments_get_a_result_or_an_error(api: Api, tool: Tool) -> None:
    good = {name: json.dumps(GOOD[name]).encode() for name in tool.schema["required"]} | QUICK.get(tool.name, {})
    for field in [*tool.schema["properties"], "nobody_knows_this"]:
        for odd in ODD[1:] if (tool.name, field) == ("run_job", "wait_seconds") else ODD:  # null is the default
            given = good | {field: odd}
            arguments = b",".join(b"%b:%b" % (json.dumps(name).encode(), value) for name, value in given.items())
            refused, text = await called(api, tool.name, b"{%b}" % arguments)
            if refused:
                problem = json.loads(text)
                assert problem["status"] < 500, (field, odd, problem)
                assert problem["detail"]
