from __future__ import annotations

from typing import Any

from django_tasks import task
from django_tasks.base import TaskContext

from tests.integrations.django_site.models import Note


@task
def add(a: int, b: int) -> int:
    return a + b


@task(queue_name="mail", priority=5)
async def shout(text: str) -> str:
    return text.upper()


@task(takes_context=True)
def remember(context: TaskContext, text: str) -> dict[str, Any]:
    note = Note.objects.create(text=text)
    return {"attempt": context.attempt, "notes": Note.objects.filter(pk=note.pk).count()}


@task
def fail() -> None:
    raise ValueError("no")


class OutOfStock(Exception):
    pass


@task
def sell() -> None:
    raise OutOfStock("none left\nreally")
