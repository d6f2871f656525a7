"""`interlock` commands in processes that are forked from one with the imports done.

Each command has its own process, arguments, environment and streams, as `python -m interlock` has; only the second of
CPU that the imports take is spent once.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tests.support.eventually import RETRY_SECONDS

HEAD = 8
IMPORTED = (
    "interlock.cli.main",
    "interlock.storage.sqlite.store",
    "interlock.storage.postgres.store",
    "interlock.engine.engine",
)


def run_command(
    arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, like `subprocess.run` with captured text."""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+", errors="replace", newline="") as out,
        tempfile.TemporaryFile("w+", errors="replace", newline="") as error,
        socket.socket(socket.AF_UNIX) as line,
    ):
        given.write(stdin or "")
        given.seek(0)
        line.settimeout(RETRY_SECONDS)
        line.connect(_server())
        request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        socket.send_fds(line, [len(request).to_bytes(HEAD)], [given.fileno(), out.fileno(), error.fileno()])
        line.sendall(request)
        code = int.from_bytes(_exactly(line, HEAD), signed=True)
        for file in (out, error):
            file.seek(0)
        return subprocess.CompletedProcess(["interlock", *arguments], code, out.read(), error.read())


@functools.cache
def _server() -> str:
    """Start the process that forks; return the path of its socket."""
    directory = tempfile.mkdtemp(prefix="interlock-cli-")
    path = f"{directory}/socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(64)
        code = "import sys; from tests.support import commands; commands.serve(int(sys.argv[1]))"
        words = [sys.executable, "-c", code, str(listening.fileno())]
        process = subprocess.Popen(words, pass_fds=[listening.fileno()], cwd=Path(__file__).parents[2])

    def stop() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)

    atexit.register(stop)
    return path


def serve(fd: int) -> None:
    """Fork a process for every request, and send its exit code back."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    listening = socket.socket(fileno=fd)
    waiting = selectors.DefaultSelector()
    waiting.register(listening, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.data is None:
                line, _ = listening.accept()
                head, fds, _, _ = socket.recv_fds(line, HEAD, 3)
                request = json.loads(_exactly(line, int.from_bytes(head)))
                if (pid := os.fork()) == 0:
                    waiting.close()
                    listening.close()
                    line.close()
                    return _become(request, fds)
                for one in fds:
                    os.close(one)
                waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, line))
            else:
                pid, line = key.data
                _, status = os.waitpid(pid, 0)
                waiting.unregister(key.fd)
                os.close(key.fd)
                with line:
                    line.sendall(os.waitstatus_to_exitcode(status).to_bytes(HEAD, signed=True))


def _become(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Run the command of a request in this process, which ends with it."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 - for all of its life
    sys.stderr = open(2, "w", errors="backslashreplace", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["interlock", *request["arguments"]]
    sys.path.insert(0, request["cwd"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from interlock.cli.main import main

    _end(_code_of(main))


def _code_of(main: Callable[[], object]) -> int:
    """Run it; return the exit code that the interpreter would end with. An interrupt is left to the interpreter."""
    try:
        main()
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as the interpreter does, but leave the memory to the kernel: freeing all modules takes longer than a command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = 120
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _exactly(line: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        if not (some := line.recv(size - len(found))):
            raise EOFError("the process that runs commands has ended")
        found += some
    return found
