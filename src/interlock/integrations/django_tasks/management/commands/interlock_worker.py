"""`manage.py interlock_worker`: run the tasks of a backend."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import django
from django.core.management.base import BaseCommand, CommandError

if django.VERSION >= (6, 0):
    from django.tasks import task_backends
else:
    from django_tasks import task_backends

from interlock.integrations.django_tasks.backend import InterlockBackend
from interlock.worker.loop import Worker


class Command(BaseCommand):
    help = "Run the tasks of a backend of Interlock. SIGTERM waits for running tasks, a second one releases them."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default="default", help="alias in TASKS (default: default)")
        parser.add_argument("--concurrency", type=int, default=10, help="tasks that run concurrently (default: 10)")
        parser.add_argument("--drain", action="store_true", help="stop when no task is due")

    def handle(self, *_: Any, backend: str, concurrency: int, drain: bool, **__: Any) -> None:
        found = task_backends[backend]
        if not isinstance(found, InterlockBackend):
            raise CommandError(f"TASKS[{backend!r}] is not a backend of Interlock: name one with --backend")
        asyncio.run(_work(found, concurrency, drain=drain))


async def _work(backend: InterlockBackend, concurrency: int, *, drain: bool) -> None:
    worker = Worker(backend.app, concurrency=concurrency)
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        worker.stop(now=signals > 1)

    for one in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(one, stop)
    try:
        await worker.run(drain=drain)
    finally:
        await backend.app.close()
