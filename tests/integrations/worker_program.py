"""A program that keeps one worker running: a worker that was killed is replaced, until the program is stopped.

Workers are forked after the imports, so that one is up in a moment.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from pathlib import Path


def main(module: str, pid_file: str) -> None:
    app = importlib.import_module(module).app
    while True:
        child = os.fork()
        if child == 0:
            own = Path(f"{pid_file}-{os.getpid()}")
            own.write_text(str(os.getpid()))
            own.replace(pid_file)  # a reader never sees half of it
            asyncio.run(work(app))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            sys.exit(f"the worker ended with {status}")


async def work(app: object) -> None:
    from interlock import Worker

    await Worker(app, name=f"worker/{os.getpid()}", lease=600, heartbeat_interval=0.2, concurrency=1).run()  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
