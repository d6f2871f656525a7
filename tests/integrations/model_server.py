"""A model API on loopback that plays a script, records every call, and can kill the caller at any of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

TURNS = 3  # with tools; one more turn gives the result
PARALLEL = 2  # tool calls in one turn


class Call(NamedTuple):
    """A model request ("model", turn) or a tool call ("tool", turn, number)."""

    kind: str
    turn: int
    number: int = 0


class ModelServer:
    """The OpenAI chat API, whose model calls `look_up` twice in each turn, and adds the answers up at the end."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lock = threading.Lock()
        self.ended = threading.Condition()
        self.before: Callable[[Call], None] = lambda call: None
        self.after: Callable[[Call], None] = lambda call: None
        self.url = ""
        self.connections = 0

    def settle(self) -> None:
        """Wait, after the only caller has ended, until none of its calls is still to be recorded."""
        connection = HTTPConnection(self.url.removeprefix("http://"))
        connection.request("GET", "/")
        connection.getresponse()  # comes after every connection that was made before
        connection.close()
        with self.ended:
            self.ended.wait_for(lambda: self.connections == 0)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        """Return the response of the model, or of the service behind the tool."""
        if path == "/look-up":
            return {"value": value_of(body["turn"], body["number"])}
        return completion(body["messages"])

    def call_of(self, path: str, body: dict[str, Any]) -> Call:
        if path == "/look-up":
            return Call("tool", body["turn"], body["number"])
        return Call("model", turn_of(body["messages"]))

    def count(self, call: Call) -> int:
        return self.calls.count(call)


def value_of(turn: int, number: int) -> int:
    return 10**turn * number


def total() -> int:
    """The right result of a run."""
    return sum(value_of(turn, number) for turn in range(1, TURNS + 1) for number in range(1, PARALLEL + 1))


def turn_of(messages: list[dict[str, Any]]) -> int:
    """Return the number of the turn that this request asks for, from 1."""
    return 1 + sum(message["role"] == "assistant" for message in messages)


def completion(messages: list[dict[str, Any]]) -> dict[str, Any]:
    turn = turn_of(messages)
    message: dict[str, Any]
    if turn <= TURNS:
        calls = [
            {
                "id": f"call_{turn}_{number}",
                "type": "function",
                "function": {"name": "look_up", "arguments": json.dumps({"turn": turn, "number": number})},
            }
            for number in range(1, PARALLEL + 1)
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    else:
        found = [message for message in messages if message["role"] == "tool"]
        message = {"role": "assistant", "content": str(sum(number_in(one["content"]) for one in found))}
    return {
        "id": f"response-{turn}",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": "fake",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if turn > TURNS else "tool_calls"}],
        "usage": {"prompt_tokens": 100 * turn, "completion_tokens": 10, "total_tokens": 100 * turn + 10},
    }


def number_in(content: Any) -> int:
    text = content if isinstance(content, str) else content[0]["text"]
    return int(text) if text.strip().lstrip("-").isdigit() else 0


def tokens() -> dict[str, int]:
    """The usage of a run in which each turn was asked for once."""
    return {"input_tokens": sum(100 * turn for turn in range(1, TURNS + 2)), "output_tokens": 10 * (TURNS + 1)}


@contextmanager
def serving() -> Iterator[ModelServer]:
    """A server on a free port of this machine, for as long as the block lasts."""
    model = ModelServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(204)
            self.send_header("Connection", "close")
            self.end_headers()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            call = model.call_of(self.path, body)
            with model.lock:
                model.calls.append(call)
            model.before(call)
            content = json.dumps(model.answer(self.path, body)).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()
            except OSError:  # the caller was killed
                self.close_connection = True
            model.after(call)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            with model.ended:
                model.connections += 1
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            super().shutdown_request(request)
            with model.ended:
                model.connections -= 1
                model.ended.notify_all()

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a killed caller resets its connection

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield model
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
