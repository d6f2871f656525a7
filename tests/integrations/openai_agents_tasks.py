"""Tasks with agents of the OpenAI Agents SDK, run by a worker process."""

from __future__ import annotations

import os

import httpx2
from agents import Agent, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

import interlock
from interlock.integrations.openai_agents import DurableRunner

set_tracing_disabled(True)
MODEL = os.environ["MODEL"]
app = interlock.App(os.environ["JOBS"])
model = OpenAIChatCompletionsModel("fake", AsyncOpenAI(base_url=MODEL, api_key="none"))


async def found(turn: int, number: int) -> int:
    async with httpx2.AsyncClient(timeout=None) as client:
        response = await client.post(f"{MODEL}/look-up", json={"turn": turn, "number": number})
    return int(response.json()["value"])


look_up = function_tool(found, name_override="look_up")
look_up_carefully = function_tool(found, name_override="look_up", needs_approval=True)
adder = Agent(name="adder", model=model, tools=[look_up])
careful = Agent(name="careful", model=model, tools=[look_up_carefully])


@app.task(max_attempts=100)
async def add_up(question: str) -> int:
    return int((await DurableRunner.run(adder, question)).final_output)


@app.task(max_attempts=100)
async def add_up_carefully(question: str) -> int:
    return int((await DurableRunner.run(careful, question)).final_output)
