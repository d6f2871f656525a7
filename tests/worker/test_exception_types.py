"""The options retry_on and fail_on: which exceptions are retried, and which fail the job permanently."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

import interlock
from interlock.errors import Unavailable
from tests.support.apps import StoreApp

RETRIED, PERMANENT = "retry", "failed"


CASES: list[tuple[dict[str, Any], Exception, str]] = [
    ({}, KeyError(), RETRIED),
    ({"fail_on": KeyError}, KeyError(), PERMANENT),
    ({"fail_on": [LookupError]}, KeyError(), PERMANENT),
    ({"fail_on": [KeyError]}, OSError(), RETRIED),
    ({"retry_on": OSError}, OSError(), RETRIED),
    ({"retry_on": OSError}, KeyError(), PERMANENT),
    ({"retry_on": ()}, OSError(), PERMANENT),
    ({"retry_on": OSError, "fail_on": FileNotFoundError}, FileNotFoundError(), PERMANENT),
    ({"retry_on": FileNotFoundError, "fail_on": OSError}, FileNotFoundError(), PERMANENT),
    ({"retry_on": OSError}, interlock.Retry(), RETRIED),
    ({"retry_on": OSError}, Unavailable("the database restarts"), RETRIED),
    ({"retry_on": OSError, "fail_on": Unavailable}, Unavailable("the database restarts"), PERMANENT),
    ({"retry_on": OSError}, ExceptionGroup("both", [OSError(), OSError()]), RETRIED),
    ({"retry_on": OSError}, ExceptionGroup("both", [OSError(), KeyError()]), PERMANENT),
    ({"fail_on": KeyError}, ExceptionGroup("both", [OSError(), KeyError()]), PERMANENT),
    ({"retry_on": ExceptionGroup}, ExceptionGroup("both", [OSError(), KeyError()]), RETRIED),
]


async def test_the_type_of_an_exception_decides_between_retry_and_failure(app: StoreApp) -> None:
    async def fails(number: int) -> None:
        raise CASES[number][1]

    handles = [
        await app.task(name=f"work-{number}", **options)(fails).enqueue(number)
        for number, (options, _, _) in enumerate(CASES)
    ]
    await app.drain()
    assert [(await handle.refresh()).status for handle in handles] == [status for _, _, status in CASES]


async def test_a_synchronous_task_and_a_changed_copy_keep_the_types(app: StoreApp) -> None:
    @app.task(fail_on=KeyError)
    def work() -> None:
        raise KeyError("gone")

    handle = await work.options(priority=1).enqueue()
    await app.drain()
    job = await handle.refresh()
    assert (job.status, (job.error or {})["kind"]) == (PERMANENT, "KeyError")


async def test_an_exception_of_fail_on_ends_the_retries_of_a_step(app: StoreApp) -> None:
    calls: list[int] = []

    def broken() -> None:
        calls.append(1)
        raise KeyError("gone")

    @app.task(fail_on=KeyError)
    async def work(ctx: interlock.Context) -> None:
        await ctx.step("fetch", broken, attempts=5, retry=interlock.Backoff("fixed", base=0))

    handle = await work.enqueue()
    await app.drain()
    assert (len(calls), (await handle.refresh()).status) == (1, PERMANENT)


@pytest.mark.parametrize(
    "options", [{"retry_on": "OSError"}, {"fail_on": OSError()}, {"retry_on": [None]}, {"fail_on": SystemExit}]
)
def test_other_values_than_exception_types_are_rejected_at_declaration(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(options))} contains .*: expected types of exceptions"):
        interlock.App("sqlite:///unused.db").task(**options)


def test_a_type_in_both_options_is_rejected() -> None:
    with pytest.raises(ValueError, match="both contain OSError"):
        interlock.App("sqlite:///unused.db").task(retry_on=OSError, fail_on=[OSError])


async def test_the_backoff_of_a_task_is_a_value_or_a_mapping(app: StoreApp) -> None:
    @app.task(backoff=interlock.Backoff("fixed", base=timedelta(minutes=1), max=60))
    async def one() -> None: ...

    @app.task(backoff={"kind": "fixed", "base_seconds": 60, "max_seconds": 60})
    async def other() -> None: ...

    jobs = [await (await task.enqueue()).refresh() for task in (one, other)]
    assert [job.backoff for job in jobs] == [interlock.Backoff("fixed", base=60, max=60)] * 2
