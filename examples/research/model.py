"""A model for the example: a fake one that needs no key, and a real one with the same method."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Protocol

import httpx2

import interlock


@dataclass
class Answer:
    """What a model returned, and the tokens that it counted."""

    text: str
    tokens: int


class Model(Protocol):
    """Anything that answers a prompt."""

    async def ask(self, prompt: str) -> Answer: ...


class FakeModel:
    """Answers from the prompt alone, so that the example runs without a key and gives the same report each time."""

    async def ask(self, prompt: str) -> Answer:
        task, _, subject = prompt.partition(": ")
        if task == "plan":
            parts = ("causes", "history", "effects", "open questions", "sources")
            return Answer("\n".join(f"{subject}, {part}" for part in parts), tokens=40)
        return Answer(f"What is known about {subject}.", tokens=120)


class RealModel:
    """A model behind an HTTP API with the chat format that most providers have."""

    def __init__(self, url: str = "https://api.openai.com/v1/chat/completions", name: str = "gpt-5-mini") -> None:
        self.url, self.name = url, name

    async def ask(self, prompt: str) -> Answer:
        headers = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
        body = {"model": self.name, "messages": [{"role": "user", "content": prompt}]}
        async with httpx2.AsyncClient(timeout=120) as http:
            response = await http.post(self.url, json=body, headers=headers)
        if response.status_code == 429:
            raise interlock.RateLimited("model", delay=float(response.headers.get("retry-after", 10)))
        answer = response.raise_for_status().json()
        return Answer(answer["choices"][0]["message"]["content"], answer["usage"]["total_tokens"])
