"""The backend: tasks of Django become jobs, and jobs become results of Django."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final

import django
from django.core import checks
from django.db import close_old_connections, connections
from django.utils.module_loading import import_string

if django.VERSION >= (6, 0):
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

from interlock.assemble import App
from interlock.domain.lifecycle import TERMINAL, Status
from interlock.errors import Invalid, NotFound
from interlock.sdk.current import current
from interlock.sdk.exceptions import Fail
from interlock.sdk.values import HistoryRow, Job

PREFIX: Final = "django."  # of the types of jobs; the name of the queue follows
MAX_TAG_LENGTH: Final = 200


class InterlockBackend(BaseTaskBackend):
    """Enqueues tasks as jobs, by queue and with their path as a tag.

    Options: `url` of the jobs, by default that of the settings of Interlock; `database`, the alias of a PostgreSQL
    database of Django that also holds the jobs, so that both commit together; `max_attempts`.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    @cached_property
    def app(self) -> App:
        """The app whose tasks run the jobs of each queue."""
        made = App(self.options.get("url"))
        attempts = self.options.get("max_attempts")
        for queue in sorted(self.queues):
            declare = made.task(name=PREFIX + queue, **({} if attempts is None else {"max_attempts": attempts}))
            declare(self._run)
        return made

    def enqueue(self, task: Task[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> TaskResult[Any]:
        """Enqueue a job, in the open transaction of the database that the options name."""
        self.validate_task(task)
        job_task = self.app.tasks[PREFIX + task.queue_name].options(
            priority=task.priority, tags=[task.module_path[-MAX_TAG_LENGTH:]]
        )
        if task.run_after is not None:
            job_task = job_task.options(run_at=task.run_after)
        if (transaction := self._transaction()) is not None:
            job_task = job_task.within(transaction)
        handle = job_task.enqueue_detached_sync(task.module_path, list(args), dict(kwargs))
        result = _result(task, handle.id, TaskResultStatus.READY, list(args), dict(kwargs), self.alias)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any]:
        handle = self.app.job(result_id)
        try:
            job = handle.refresh_sync()
        except (NotFound, Invalid) as error:
            raise TaskResultDoesNotExist(result_id) from error
        if not job.type.startswith(PREFIX):
            raise TaskResultDoesNotExist(result_id)
        return self._result_of(job, handle.history_sync())

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Report settings that cannot work."""
        if not self.queues:
            yield checks.Error(f"TASKS[{self.alias!r}]['QUEUES'] is empty: name the queues", id="interlock.E001")
        database = self.options.get("database")
        if database is not None and connections[database].vendor != "postgresql":
            yield checks.Error(
                f"TASKS[{self.alias!r}]['OPTIONS']['database'] is {database!r}, which is not PostgreSQL: "
                "leave it out, and enqueue with transaction.on_commit()",
                id="interlock.E002",
            )

    def _transaction(self) -> Any:
        """Return the connection of the driver if Django has a transaction open on it."""
        database = self.options.get("database")
        if database is None or not connections[database].in_atomic_block:
            return None
        return connections[database].connection

    def _run(self, path: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Run the task of a job, in a thread of the worker."""
        close_old_connections()
        try:
            task = _task_at(path)
            result = self.get_result(current().id)
            task_started.send(type(self), task_result=result)
            try:
                value = task.call(*([TaskContext(task_result=result)] if task.takes_context else []), *args, **kwargs)
            except Exception:
                if current().attempt >= current().job.max_attempts:
                    self._finish(result, TaskResultStatus.FAILED)
                raise
            self._finish(result, TaskResultStatus.SUCCESSFUL, value)
            return value
        finally:
            close_old_connections()

    def _finish(self, result: TaskResult[Any], status: TaskResultStatus, value: Any = None) -> None:
        object.__setattr__(result, "status", status)
        object.__setattr__(result, "_return_value", value)
        task_finished.send(type(self), task_result=result)

    def _result_of(self, job: Job, history: Iterable[HistoryRow]) -> TaskResult[Any]:
        task = _task_at(job.payload["path"]).using(
            priority=job.priority, queue_name=job.type.removeprefix(PREFIX), backend=self.alias
        )
        status = {
            Status.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
            Status.RUNNING: TaskResultStatus.RUNNING,
        }.get(job.status, TaskResultStatus.FAILED if job.status in TERMINAL else TaskResultStatus.READY)
        return _result(
            task,
            job.id,
            status,
            job.payload["args"],
            job.payload["kwargs"],
            self.alias,
            enqueued_at=job.created_at,
            started_at=job.started_at,
            last_attempted_at=job.run_started_at,
            finished_at=job.finished_at,
            errors=[] if job.error is None else [_error(job.error)],
            worker_ids=[row.actor for row in history if row.to_status is Status.RUNNING],
            value=job.result,
        )


def _task_at(path: str) -> Task[..., Any]:
    task = import_string(path)
    if not isinstance(task, Task):
        raise Fail(f"{path} is not a task of Django: declare it with @task", kind="not_a_task")
    return task


def _result(
    task: Task[..., Any],
    id: str,
    status: TaskResultStatus,
    args: list[Any],
    kwargs: dict[str, Any],
    backend: str,
    *,
    value: Any = None,
    **known: Any,
) -> TaskResult[Any]:
    times: dict[str, Any] = dict.fromkeys(("enqueued_at", "started_at", "last_attempted_at", "finished_at"))
    others: dict[str, Any] = {**times, "errors": [], "worker_ids": [], **known}
    result: TaskResult[Any] = TaskResult(
        task=task, id=id, status=status, args=args, kwargs=kwargs, backend=backend, **others
    )
    object.__setattr__(result, "_return_value", value)
    return result


def _error(error: dict[str, Any]) -> TaskError:
    """Return the last error of a job. Its traceback names the module of the class."""
    kind, details = error.get("kind") or "", error.get("details")
    traceback = (details.get("traceback") if isinstance(details, dict) else None) or error.get("message") or ""
    named = re.findall(rf"^((?:\w+\.)*{re.escape(kind)})(?::|$)", traceback, re.MULTILINE)
    path = named[-1] if named and "." in named[-1] else f"builtins.{kind}"
    return TaskError(exception_class_path=path if _is_exception(path) else "builtins.Exception", traceback=traceback)


def _is_exception(path: str) -> bool:
    try:
        found = import_string(path)
    except ImportError:
        return False
    return isinstance(found, type) and issubclass(found, BaseException)
