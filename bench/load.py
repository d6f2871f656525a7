"""`python -m bench.load`: the load of the HTTP benchmark, in a process of its own; a job in JSON on standard input.

It speaks just enough HTTP/1.1 over plain sockets that the server, not the caller, is what is measured.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final, Literal, cast

import msgspec
import uvloop

from bench.workload import payload, type_of

Kind = Literal["create", "cycle"]
_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "
_REQUEST: Final = (
    b"POST %b HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, from how many connections and for how long; a batch of 1 uses the calls for single jobs."""

    port: int
    kind: Kind
    connections: int
    batch: int
    seconds: float
    warm_seconds: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What was done within the time: jobs, and the milliseconds that each call took."""

    jobs: int
    seconds: float
    milliseconds: list[float]


class _Grant(msgspec.Struct):
    fence: int


class _Job(msgspec.Struct):
    id: str
    lease: _Grant | None = None


class _Jobs(msgspec.Struct):
    jobs: list[_Job]


class _Receipt(msgspec.Struct):
    id: str
    status: str


class _Receipts(msgspec.Struct):
    items: list[_Receipt]


_read_jobs: Final = msgspec.json.Decoder(_Jobs).decode
_read_receipt: Final = msgspec.json.Decoder(_Receipt).decode
_read_receipts: Final = msgspec.json.Decoder(_Receipts).decode


class LoadFailed(Exception):
    """An answer was not the one that was timed for."""


class Connection(asyncio.Protocol):
    """One connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self._buffer = b""
        self._answer: asyncio.Future[bytes] | None = None
        self.calls: list[tuple[float, float]] = []  # when each began and ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        head = data.find(_END)
        if head >= 0:
            start = data.find(_LENGTH, 0, head)  # a 204 has none
            length = 0 if start < 0 else int(data[start + len(_LENGTH) : data.find(b"\r", start)])
            whole = head + len(_END) + length
            if len(data) >= whole and self._answer is not None:
                self._buffer = data[whole:]
                self._answer.set_result(data)
                return
        self._buffer = data

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LoadFailed(f"the server closed the connection: {exc}"))

    async def post(self, path: bytes, body: bytes) -> bytes:
        """The body of an answer that must be a success."""
        answered: asyncio.Future[bytes] = self._loop.create_future()
        self._answer = answered
        began = time.perf_counter()
        self._transport.write(_REQUEST % (path, len(body), body))
        answer = await answered
        self.calls.append((began, time.perf_counter()))
        if not answer.startswith(b"HTTP/1.1 20"):
            raise LoadFailed(f"POST {path.decode()}: {answer[:500].decode()}")
        return answer[answer.find(_END) + len(_END) :]

    def close(self) -> None:
        self._transport.close()


class Caller:
    """One producer that is also a worker, on one connection."""

    def __init__(self, connection: Connection, number: int, batch: int, commit_seq: Callable[[], int]) -> None:
        self._connection, self._batch, self._turn = connection, batch, commit_seq
        self._worker = b"worker-%d" % number
        self._ask = b'{"worker":"%b","limit":%d}' % (self._worker, batch)

    async def create(self) -> int:
        if self._batch == 1:
            await self._connection.post(b"/v1/jobs", self._new())
            return 1
        jobs = b",".join([self._new() for _ in range(self._batch)])
        answer = await self._connection.post(b"/v1/jobs/batch", b'{"jobs":[%b]}' % jobs)
        return len(_read_jobs(answer).jobs)

    async def cycle(self) -> int:
        """Create, claim as many, complete what was granted; another caller may have got what this one made."""
        await self.create()
        leased = _read_jobs(await self._connection.post(b"/v1/claims", self._ask)).jobs
        if not leased:
            return 0
        if self._batch == 1:
            (job,) = leased
            body = b'{"worker":"%b","fence":%d}' % (self._worker, _fence(job))
            receipts = [_read_receipt(await self._connection.post(b"/v1/jobs/%b/complete" % job.id.encode(), body))]
        else:
            items = b",".join([
                b'{"id":"%b","fence":%d,"worker":"%b","outcome":"complete"}'
                % (job.id.encode(), _fence(job), self._worker)
                for job in leased
            ])  # fmt: skip
            answer = await self._connection.post(b"/v1/finishes", b'{"items":[%b]}' % items)
            receipts = _read_receipts(answer).items
        for receipt in receipts:
            if receipt.status != "succeeded":
                raise LoadFailed(f"job {receipt.id} was not completed: {receipt.status}")
        return len(receipts)

    def _new(self) -> bytes:
        number = self._turn()
        return b'{"type":"%b","payload":%b}' % (type_of(number).encode(), payload(number).encode())


async def run(order: Order) -> Outcome:
    """Keep every connection busy for the time; what was begun before the end is finished but not counted."""
    loop = asyncio.get_running_loop()
    commit_seq = iter(range(10**9)).__next__
    callers = []
    connections = []
    for number in range(order.connections):
        _, connection = await loop.create_connection(Connection, "127.0.0.1", order.port)
        connections.append(connection)
        callers.append(Caller(connection, number, order.batch, commit_seq))
    start = time.perf_counter() + order.warm_seconds
    end = start + order.seconds
    done = 0

    async def keep_busy(caller: Caller) -> None:
        nonlocal done
        act = caller.create if order.kind == "create" else caller.cycle
        while (began := time.perf_counter()) < end:
            jobs = await act()
            if began >= start and time.perf_counter() <= end:
                done += jobs

    try:
        await asyncio.gather(*(keep_busy(caller) for caller in callers))
    finally:
        for connection in connections:
            connection.close()
    calls = (call for connection in connections for call in connection.calls)
    took = sorted((ended - began) * 1000 for began, ended in calls if began >= start and ended <= end)
    return Outcome(jobs=done, seconds=order.seconds, milliseconds=took)


def _fence(job: _Job) -> int:
    assert job.lease is not None
    return job.lease.fence


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        outcome = runner.run(run(order))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


if __name__ == "__main__":
    main()
