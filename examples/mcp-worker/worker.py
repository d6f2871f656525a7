"""A worker that has nothing but MCP tools: it claims jobs, saves what it has done, and asks before it publishes.

An agent in an MCP client calls the same tools in the same order. Here a program does, so that it runs without a model.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.types import TextContent


class Tools:
    """The tools of `interlock mcp`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert isinstance(content, TextContent)
        if result.is_error:
            raise RuntimeError(content.text)
        answer: dict[str, Any] = json.loads(content.text)
        return answer


async def work(tools: Tools, job: dict[str, Any]) -> None:
    """Run one job. Every call names the lease's fence, so that a worker that lost the job cannot change it."""
    mine = {"job_id": job["id"], "fence": job["lease"]["fence"]}
    steps = {step["name"]: step["result"] for step in job.get("steps", [])}
    if "draft" not in steps:
        steps["draft"] = draft(job["payload"]["topic"])
        await tools.call("save_step", **mine, name="draft", occurrence=1, result=steps["draft"])
    if (approval := job.get("approval")) is None:
        await tools.call(
            "request_approval", **mine, prompt=f"Publish {steps['draft']!r}?", name="publish", on_deny="resume"
        )
        return  # the job waits without a worker; the next claim has the decision
    published = approval["decision"] == "approve"
    await tools.call("complete_job", **mine, result={"text": steps["draft"], "published": published})


def draft(topic: str) -> str:
    """Write a draft. An agent writes it with its model."""
    return f"Three facts about {topic}"


async def main(*arguments: str) -> None:
    interlock = StdioServerParameters(
        command=sys.executable, args=["-m", "interlock", "mcp", *arguments], env=dict(os.environ)
    )
    async with Client(interlock) as client:
        tools = Tools(client)
        while jobs := (await tools.call("claim_job", types=["article"], wait_seconds=1))["jobs"]:
            for job in jobs:
                await work(tools, job)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
