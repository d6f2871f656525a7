"""Enqueue tasks in transactions, run them with the command, and print what became of them as JSON."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import django

django.setup()

from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.utils import timezone  # noqa: E402
from django_tasks import default_task_backend  # noqa: E402
from django_tasks.exceptions import TaskResultDoesNotExist  # noqa: E402

from tests.integrations.django_site.models import Note  # noqa: E402
from tests.integrations.django_site.tasks import add, fail, remember, sell, shout  # noqa: E402


class Rollback(Exception):
    pass


def outcome(id: str) -> Any:
    try:
        result = default_task_backend.get_result(id)
    except TaskResultDoesNotExist:
        return "does not exist"
    return [result.status.value, result._return_value, result.attempts]


def main() -> None:
    call_command("check")
    with connection.schema_editor() as editor:
        editor.create_model(Note)
    with transaction.atomic():
        Note.objects.create(text="kept")
        kept = add.enqueue(1, b=2)
    ids: list[str] = []
    try:
        with transaction.atomic():
            Note.objects.create(text="lost")
            ids.append(add.enqueue(3, 4).id)
            raise Rollback
    except Rollback:
        pass
    shouted, remembered, failed = asyncio.run(shout.aenqueue("hi")), remember.enqueue("by task"), fail.enqueue()
    sold = sell.enqueue()
    later = add.using(run_after=timezone.now() + timedelta(days=1)).enqueue(5, 6)
    before = outcome(kept.id)
    call_command("interlock_worker", drain=True)
    failed.refresh()
    sold.refresh()
    shouted.refresh()
    print(
        json.dumps(
            {
                "before": before,
                "kept": outcome(kept.id),
                "lost": outcome(ids[0]),
                "shouted": [outcome(shouted.id), shouted.task.queue_name, shouted.task.priority, shouted.return_value],
                "remembered": outcome(remembered.id),
                "failed": [
                    outcome(failed.id),
                    failed.errors[0].exception_class.__name__,
                    "no" in failed.errors[0].traceback,
                ],
                "sold": sold.errors[0].exception_class_path,
                "later": outcome(later.id),
                "unknown": [outcome("01a1efa6-bdd6-7317-800d-e93c65e58010"), outcome("x")],
                "notes": sorted(Note.objects.values_list("text", flat=True)),
            }
        )
    )


if __name__ == "__main__":
    main()
