"""A program that runs workers of the research agent, each until nothing is due, or until it is killed at a point.

A point is the moment before or after the n-th call of an operation. Workers are forked after the imports. Each request
is a line on standard input, `["save_step", 2, "after"]` or `null`; the response is a line too. Calls are logged.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interlock
from interlock.assemble import open_client
from interlock.client.port import Client

UNWATCHED = ("claim", "heartbeats", "interrupted", "add_events", "append")  # how often depends on time
POINTS, CALLS = Path("points.log"), Path("calls.log")


class Points:
    """The calls of one worker, which is killed at one of them."""

    def __init__(self, wanted: list[Any] | None) -> None:
        self.wanted, self.counted = wanted, Counter[str]()

    def reach(self, name: str, when: str) -> None:
        if when == "before":
            self.counted[name] += 1
        point = [name, self.counted[name], when]
        append(POINTS, json.dumps(point))
        if point == self.wanted:
            os.kill(os.getpid(), signal.SIGKILL)


def append(file: Path, line: str) -> None:
    with file.open("a") as log:
        log.write(line + "\n")


class Watched:
    """A group of operations of a client that reaches a point before and after each call."""

    def __init__(self, group: Any, points: Points) -> None:
        self._group, self._points = group, points

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._group, name)
        is_watched = inspect.iscoroutinefunction(found) and name not in UNWATCHED
        return watched(name, found, self._points) if is_watched else found


def watched(name: str, function: Callable[..., Any], points: Points) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        points.reach(name, "before")
        result = await function(*args, **kwargs)
        if name == "save_step":
            append(CALLS, f"saved {args[0].name} {args[0].result}")
        points.reach(name, "after")
        return result

    return call


async def work(url: str, agent: Any, wanted: list[Any] | None) -> None:
    points = Points(wanted)

    async def connect() -> Client:
        client: Any = await open_client(url)
        client.work, client.jobs = Watched(client.work, points), Watched(client.jobs, points)
        return client  # type: ignore[no-any-return]

    class Model:
        async def ask(self, prompt: str) -> Any:
            append(CALLS, f"ask {prompt}")
            return await watched("ask", agent.FakeModel().ask, points)(prompt)

    publish = agent.publish

    @functools.wraps(publish)
    def published(key: str, text: str) -> Any:
        points.reach("publish", "before")
        append(CALLS, f"publish {key}")
        page = publish(key, text)
        points.reach("publish", "after")
        return page

    agent.model, agent.publish = Model(), published
    agent.app._connect_by(connect)
    async with agent.app:
        await interlock.Worker(agent.app, lease=3600, name="killed").run(drain=True)


def main(url: str) -> None:
    sys.path.insert(0, str(Path.cwd()))
    agent = importlib.import_module("agent")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            asyncio.run(work(url, agent, json.loads(line)))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
