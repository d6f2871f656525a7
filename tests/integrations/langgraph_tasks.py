"""Tasks with graphs of LangGraph, run by a worker process."""

from __future__ import annotations

import os
from typing import Annotated, Any, TypedDict

import httpx2
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send

import interlock
from interlock.integrations.langgraph import DurableGraph

MODEL = os.environ["MODEL"]
app = interlock.App(os.environ["JOBS"])


class FakeChat(BaseChatModel):
    """A chat model on the model API of the tests."""

    @property
    def _llm_type(self) -> str:
        return "fake"

    async def _agenerate(self, messages: list[Any], *args: Any, **kwargs: Any) -> ChatResult:
        plain = [{"role": ROLES[message.type], "content": message.content} for message in messages]
        async with httpx2.AsyncClient(timeout=None) as client:
            response = (await client.post(f"{MODEL}/chat", json={"messages": plain})).json()
        message, used = response["choices"][0]["message"], response["usage"]
        calls = [
            {
                "id": one["id"],
                "name": one["function"]["name"],
                "args": httpx2.Response(200, content=one["function"]["arguments"]).json(),
            }
            for one in message.get("tool_calls", ())
        ]
        usage: Any = {
            "input_tokens": used["prompt_tokens"],
            "output_tokens": used["completion_tokens"],
            "total_tokens": used["total_tokens"],
        }
        answer = AIMessage(content=message["content"] or "", tool_calls=calls, usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError


ROLES = {"human": "user", "ai": "assistant", "tool": "tool"}
model = FakeChat()


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


async def think(state: State) -> dict[str, Any]:
    return {"messages": [await model.ainvoke(state["messages"])]}


async def look_up(call: dict[str, Any]) -> dict[str, Any]:
    async with httpx2.AsyncClient(timeout=None) as client:
        response = await client.post(f"{MODEL}/look-up", json=call["args"])
    return {"messages": [ToolMessage(str(response.json()["value"]), tool_call_id=call["id"])]}


def calls_of(state: State) -> Any:
    last: Any = state["messages"][-1]
    return [Send("look_up", call) for call in last.tool_calls] or END


builder = StateGraph(State)
builder.add_node("think", think)
builder.add_node("look_up", look_up)  # type: ignore[arg-type]
builder.add_edge(START, "think")
builder.add_conditional_edges("think", calls_of, ["look_up", END])
builder.add_edge("look_up", "think")
graph = DurableGraph(builder.compile(name="adder"))


@app.task(max_attempts=100)
async def add_up(question: str) -> int:
    state = await graph.ainvoke({"messages": [HumanMessage(question)]})
    return int(state["messages"][-1].content)
