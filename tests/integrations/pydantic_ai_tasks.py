"""Tasks with agents of Pydantic AI, run by a worker process."""

from __future__ import annotations

import os

import httpx2
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import interlock
from interlock.integrations.pydantic_ai import InterlockDurability

MODEL = os.environ["MODEL"]
app = interlock.App(os.environ["JOBS"])
model = OpenAIChatModel("fake", provider=OpenAIProvider(base_url=MODEL, api_key="none"))
agent = Agent(model, name="adder", capabilities=[InterlockDurability()])
careful = Agent(model, name="careful", capabilities=[InterlockDurability()])


@agent.tool_plain
async def look_up(turn: int, number: int) -> int:
    async with httpx2.AsyncClient(timeout=None) as client:
        response = await client.post(f"{MODEL}/look-up", json={"turn": turn, "number": number})
    return int(response.json()["value"])


@careful.tool_plain(name="look_up", requires_approval=True)
async def look_up_carefully(turn: int, number: int) -> int:
    return await look_up(turn, number)


@app.task(max_attempts=100)
async def add_up(question: str) -> int:
    return int((await agent.run(question)).output)


@app.task(max_attempts=100)
async def add_up_carefully(question: str) -> int:
    return int((await careful.run(question)).output)
