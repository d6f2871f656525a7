"""A model API on loopback that speaks to the agent CLIs: Anthropic Messages, OpenAI Responses, Gemini.

A script is a list of replies. The reply to a request is chosen by the number of assistant turns that the request
contains, so a repeated or resumed request gets the same reply. Every request is a line of the log.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

INPUT_TOKENS, OUTPUT_TOKENS = 100, 20


class FakeModels:
    """The server. `replies` is the script, `log` the file that gets one line for each request."""

    def __init__(self, replies: list[dict[str, Any]], log: Path) -> None:
        self.replies, self.log = replies, log
        self.failed: Counter[int] = Counter()
        self.lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"{}")
                owner.answer(self, body)

            def do_GET(self) -> None:
                send(self, 200, {"data": [], "models": [], "object": "list"})

            def do_HEAD(self) -> None:
                send(self, 200, {})

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        path = handler.path
        if "count_tokens" in path or "countTokens" in path:
            send(handler, 200, {"input_tokens": 10, "totalTokens": 10})
            return
        protocol, turn = protocol_of(path, body)
        if protocol is None:
            send(handler, 404, {"error": {"type": "not_found_error", "message": path}})
            return
        if protocol == "anthropic" and not body.get("tools") and "StructuredOutput" not in json.dumps(body):
            turn = -1  # a side question of the CLI, such as a title for the session
        with self.lock:
            reply: dict[str, Any] = {"text": "side"} if turn < 0 else self.replies[min(turn, len(self.replies) - 1)]
            fails = reply.get("fails", 0)
            failing = turn >= 0 and self.failed[turn] < fails
            self.failed[turn] += failing
            with self.log.open("a") as log:
                log.write(json.dumps({"protocol": protocol, "turn": turn, "failed": failing, "body": body}) + "\n")
        if failing:
            send(handler, reply["status"], reply.get("error", {}), reply.get("headers", {}))
            return
        if hold := reply.get("hold"):
            while not Path(hold).exists():  # until the test allows it, or the client is gone
                time.sleep(0.01)
        if protocol == "gemini" and "stream" not in path:
            send(handler, 200, next(gemini(reply)))
            return
        stream = {"anthropic": anthropic, "openai": openai, "gemini": gemini}[protocol]
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        for name, value in reply.get("headers", {}).items():
            handler.send_header(name, value)
        handler.send_header("connection", "close")
        handler.end_headers()
        for event in stream(reply):
            name = f"event: {event['type']}\n" if "type" in event else ""
            handler.wfile.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        handler.wfile.flush()
        handler.close_connection = True

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def send(handler: BaseHTTPRequestHandler, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    content = json.dumps(body).encode()
    handler.send_response(status)
    for name, value in {"content-type": "application/json", **(headers or {})}.items():
        handler.send_header(name, value)
    handler.send_header("content-length", str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content)


def protocol_of(path: str, body: dict[str, Any]) -> tuple[str | None, int]:
    """The protocol of a request, and the number of assistant turns in it."""
    if path.startswith("/v1/messages"):
        return "anthropic", sum(one["role"] == "assistant" for one in body["messages"])
    if path.partition("?")[0].endswith("/responses"):
        # The text and the calls of one turn are items of their own.
        is_own = [one.get("role") == "assistant" or str(one.get("type")).endswith("_call") for one in body["input"]]
        return "openai", sum(now and not before for before, now in pairwise([False, *is_own]))
    if "enerateContent" in path:
        return "gemini", sum(one.get("role") == "model" for one in body["contents"])
    return None, 0


def anthropic(reply: dict[str, Any]) -> Any:
    usage = {
        "input_tokens": INPUT_TOKENS,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 1,
    }
    tools = reply.get("tools", [])
    message = {
        "id": reply.get("id", f"msg_{time.monotonic_ns()}"), "type": "message", "role": "assistant", "content": [],
        "model": "claude-sonnet-4-5", "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    yield {"type": "message_start", "message": message}
    index = 0
    if "text" in reply:
        yield {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        yield {
            "type": "content_block_delta",
            "index": index,
            "delta": {"type": "text_delta", "text": reply["text"]},
        }
        yield {"type": "content_block_stop", "index": index}
        index += 1
    for tool in tools:
        block = {"type": "tool_use", "id": tool["id"], "name": tool["name"], "input": {}}
        part = {"type": "input_json_delta", "partial_json": json.dumps(tool["input"])}
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_delta", "index": index, "delta": part}
        yield {"type": "content_block_stop", "index": index}
        index += 1
    stop = {"stop_reason": "tool_use" if tools else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": OUTPUT_TOKENS}}
    yield {"type": "message_stop"}


def openai(reply: dict[str, Any]) -> Any:
    response = {"id": f"resp_{time.monotonic_ns()}"}
    yield {"type": "response.created", "response": response}
    if "text" in reply:
        content = [{"type": "output_text", "text": reply["text"]}]
        item = {"type": "message", "role": "assistant", "id": "msg_1", "content": content}
        yield {"type": "response.output_item.done", "item": item}
    for tool in reply.get("tools", []):
        call = {
            "type": "function_call",
            "call_id": tool["id"],
            "name": tool["name"],
            "arguments": json.dumps(tool["input"]),
        }
        yield {"type": "response.output_item.done", "item": call}
    usage = {
        "input_tokens": INPUT_TOKENS,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": OUTPUT_TOKENS,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": INPUT_TOKENS + OUTPUT_TOKENS,
    }
    yield {"type": "response.completed", "response": {**response, "usage": usage}}


def gemini(reply: dict[str, Any]) -> Any:
    parts: list[dict[str, Any]] = [{"text": reply["text"]}] if "text" in reply else []
    parts += [{"functionCall": {"name": tool["name"], "args": tool["input"]}} for tool in reply.get("tools", [])]
    yield {
        "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": INPUT_TOKENS,
            "candidatesTokenCount": OUTPUT_TOKENS,
            "totalTokenCount": INPUT_TOKENS + OUTPUT_TOKENS,
        },
        "modelVersion": "gemini-2.5-pro",
    }


if __name__ == "__main__":
    served = FakeModels(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(served.url, flush=True)
    sys.stdin.read()
