"""Apps and workers on a server: the same code as on a database, with only an address and a token."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import interlock
from interlock.domain.lifecycle import Status
from interlock.domain.timestamps import EPOCH
from interlock.errors import Invalid, Unauthenticated
from interlock.worker.loop import Worker
from tests.api.rig import Api
from tests.support.eventually import RETRY_SECONDS

MODULE = """
import interlock

app = interlock.App("sqlite:///elsewhere.db")

@app.task
async def double(n: int) -> int:
    return 2 * n
"""


async def token_for(api: Api, *roles: str, worker: str | None = None) -> str:
    token = (await api.as_role(*roles, worker_id=worker)).token
    assert token is not None
    return token


async def test_a_job_is_enqueued_run_and_awaited_through_a_server(guarded: Api) -> None:
    token = await token_for(guarded, "produce", "read", "work", worker="crew")
    async with interlock.App(guarded.url, token=token) as app:

        @app.task
        async def greet(ctx: interlock.Context, name: str) -> str:
            ctx.event("greeting", who=name)
            shouted: str = await ctx.step("word", str.upper, f"hello {name}")
            return shouted

        job = await greet.enqueue(name="Ada")
        assert await Worker(app).run(drain=True) == 1
        assert await job.result(timeout=RETRY_SECONDS) == "HELLO ADA"
        assert [event.message for event in await job.events()] == ["greeting"]
        assert (await job.history())[-1].actor.startswith("worker:crew/")


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("localhost:8420", "write http://localhost:8420"),
        ("queue.example", "write http://queue.example"),
        ("127.0.0.1:8420/base", "write http://127.0.0.1:8420/base"),
        ("jobs.db", "or http://HOST:PORT"),
        ("ftp://queue.example", "or http://HOST:PORT"),
    ],
)
def test_a_url_without_a_scheme_gets_a_correction(url: str, advice: str) -> None:
    with pytest.raises(Invalid) as rejected:
        interlock.App(url)
    assert advice in str(rejected.value)
    assert ("write http" in str(rejected.value)) is ("write http" in advice)


async def test_an_empty_token_means_none_and_a_missing_or_wrong_one_is_reported(api: Api, guarded: Api) -> None:
    async with interlock.App(api.url, token="") as app:

        @app.task
        async def nothing() -> None: ...

        assert (await nothing.enqueue()).id
    interlock.App("sqlite:///jobs.db", token="")
    for token, given in (("", "no token was given: use token="), ("ilk_wrong", "mistyped, expired, revoked")):
        async with interlock.App(guarded.url, token=token) as app:

            @app.task
            async def more() -> None: ...

            with pytest.raises(Unauthenticated, match=given):
                await more.enqueue()
    with pytest.raises(Invalid, match="line break"):
        interlock.App(guarded.url, token="ilk_secret\n")


async def test_synchronous_code_uses_the_same_server(api: Api) -> None:
    app = interlock.App(api.url)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    def blocking() -> tuple[str, int, list[str]]:
        job = add.options(idempotency_key="k").enqueue_sync(1, 2)
        again = add.options(idempotency_key="k").enqueue_sync(1, 2)
        assert (job.id, again.replayed) == (again.id, True)
        queue = interlock.Queue("just a queue", app)
        queue.push_sync({"n": 1})
        item = queue.pop_sync(wait=5)
        assert item is not None
        item.ack_sync()
        return job.id, queue.size_sync(), [str(row.to_status) for row in job.history_sync()]

    try:
        id, size, statuses = await asyncio.to_thread(blocking)
        assert (size, statuses) == (0, ["queued"])
        assert (await api.engine.queries.job(api.tenant, id)).payload == '{"a":1,"b":2}'
    finally:
        await asyncio.to_thread(app.close_sync)


@pytest.mark.parametrize(
    ("url", "more", "pointer"),
    [
        ("sqlite:///jobs.db", {"token": "t"}, "/token"),
        ("https://queue.example", {"token": "two words"}, "/token"),
        ("https://queue.example", {"tenant": "acme"}, "/tenant"),
        ("https://me:secret@queue.example", {}, "/server"),
    ],
)
def test_options_that_do_not_apply_to_a_url_are_rejected_immediately(
    url: str, more: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(interlock.errors.Invalid) as caught:
        interlock.App(url, **more)
    assert caught.value.pointer == pointer
    assert "secret" not in str(caught.value)


async def worker(directory: Path, *options: str, **variables: str) -> tuple[int, str]:
    """The exit code of a worker process that stops when nothing is due, and its output."""
    (directory / "shop.py").write_text(MODULE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "interlock", "worker", "shop:app", "--drain", *options,
        cwd=directory, env={**os.environ, **variables}, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, given = await asyncio.wait_for(process.communicate(), RETRY_SECONDS)
    assert process.returncode is not None
    return process.returncode, given.decode()


@pytest.mark.parametrize("way", ["flag", "variable", "file variable"])
async def test_a_worker_process_works_for_the_given_server(guarded: Api, tmp_path: Path, way: str) -> None:
    token = await token_for(guarded, "work", worker="crew")
    (tmp_path / "token").write_text(f"{token}\n")
    producer = await guarded.as_role("produce", "read")
    job = await producer.enqueue(type="double", payload={"n": 21})
    options, variables = {
        "flag": (["--token-file", "token"], {}),
        "variable": ([], {"INTERLOCK_TOKEN": token}),
        "file variable": ([], {"INTERLOCK_TOKEN_FILE": "token"}),
    }[way]
    code, given = await worker(tmp_path, "--server", guarded.url, *options, **variables)
    assert code == 0, given
    encoded = await producer.job(job["id"])
    assert (encoded["status"], encoded["result"]) == (Status.SUCCEEDED, 42)
    assert token not in given
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (["--server", "ftp://queue"], "https://HOST"),
        (["--server", "https://queue", "--token-file", "none"], "cannot read the token"),
        (["--token-file", "none"], "--server"),
    ],
)
async def test_a_worker_process_with_invalid_options_reports_them(
    tmp_path: Path, options: list[str], given: str
) -> None:
    code, reported = await worker(tmp_path, *options)
    assert code == 2
    assert given in reported


async def test_a_worker_process_with_an_invalid_token_exits_and_reports_why(guarded: Api, tmp_path: Path) -> None:
    code, reported = await worker(tmp_path, "--server", guarded.url, INTERLOCK_TOKEN="wrong")
    assert code != 0
    assert "credential" in reported


async def test_channels_are_managed_through_a_server(guarded: Api) -> None:
    async with interlock.App(guarded.url, token=await token_for(guarded, "admin")) as app:
        mail = await app.channels.set(
            "mail", "email", host="nosuch.invalid.example", sender="a@example.com", to=["b@example.com"], tags=["x"],
            min_risk="high", min_interval=timedelta(minutes=5),
        )  # fmt: skip
        assert mail == interlock.NotificationChannel(
            name="mail", kind="email", host="nosuch.invalid.example", recipients=("b@example.com",),
            events=("approval.requested", "job.dead_letter", "worker.stale", "budget.spent"), types=None, tags=("x",), min_risk="high",
            min_interval=timedelta(minutes=5), consecutive_failures=0, disabled_at=None, created_at=mail.created_at,
            created_by=mail.created_by, updated_at=mail.updated_at,
        )  # fmt: skip
        assert await app.channels.get("mail") == mail
        assert await app.channels.list() == [mail]
        tested = await app.channels.test("mail")
        assert (tested.delivered, tested.status_code, tested.error is None) == (False, None, False)
        await app.channels.delete("mail")
        assert await app.channels.list() == []


async def test_limits_are_managed_through_a_server(guarded: Api) -> None:
    async with interlock.App(guarded.url, token=await token_for(guarded, "admin", "read", "produce", "operate")) as app:
        made = await app.limits.set("model", concurrency=3, rate={"tokens": 600}, per=timedelta(minutes=1), keyed=True)
        assert made == interlock.Limit(
            name="model", concurrency=3, rate={"tokens": 600.0}, per=timedelta(minutes=1), burst={"tokens": 600.0},
            keyed=True, fair=False, weights={}, used=0, available={}, waiting=0, held_until=None, hold_reason=None,
            created_at=made.created_at, updated_at=made.updated_at,
        )  # fmt: skip
        assert await app.limits.list() == [made] == [await app.limits.get("model")]
        await app.jobs.enqueue("ask", {}, limits=[{"name": "model", "key": "acme", "cost": {"tokens": 100}}])
        until = made.updated_at + timedelta(hours=1)
        held = await app.limits.hold("model", until, key="acme", reason="429")
        assert held.name == "model"
        (key,) = await app.limits.keys("model")
        assert (key.key, key.used, key.waiting, key.available) == ("acme", 0, 1, {"tokens": 600.0, "concurrency": 3})
        assert (key.held_until, key.hold_reason) == (until, "429")
        await app.limits.release("model", key="acme")
        assert [one.held_until for one in await app.limits.keys("model")] == [None]
        with pytest.raises(interlock.errors.InUse):
            await app.limits.delete("model")
        await app.limits.set("other", concurrency=1)
        await app.limits.delete("other")
        assert [one.name for one in await app.limits.list()] == ["model"]


async def test_budgets_are_managed_through_a_server(guarded: Api) -> None:
    async with interlock.App(guarded.url, token=await token_for(guarded, "admin", "read", "produce", "operate")) as app:
        made = await app.budgets.set("team", {"usd": 5}, per="day", timezone="Europe/Berlin", on_exceed="warn")
        assert (made.amount, made.available, made.spent) == ({"usd": 5.0}, {"usd": 5.0}, {"usd": 0.0})
        assert (made.per, made.timezone, made.on_exceed, made.waiting) == ("day", "Europe/Berlin", "warn", 0)
        assert made.resets_at is not None
        assert await app.budgets.list() == [made] == [await app.budgets.get("team")]
        raised = await app.budgets.raise_by("team", {"usd": 2.5})
        assert raised.amount == {"usd": 7.5}
        await app.budgets.delete("team")
        assert await app.budgets.list() == []


async def test_usage_is_summed_through_a_server(guarded: Api) -> None:
    crew = await guarded.as_role("produce", "work", worker_id="crew")
    for type in ("b", "a"):
        job = await crew.running(type=type, agent={"kind": "bot", "id": type})
        done = {"fence": job["lease"]["fence"], "usage": {"usd": 1.5}}
        crew.ok(await crew.post(f"/v1/jobs/{job['id']}/complete", done))
    async with interlock.App(guarded.url, token=await token_for(guarded, "read")) as app:
        found = await app.jobs.usage()
        assert [(one.type, one.agent, one.jobs, one.usage) for one in found] == [
            ("a", None, 1, {"usd": 1.5}), ("b", None, 1, {"usd": 1.5}),
        ]  # fmt: skip
        assert [one.agent for one in await app.jobs.usage("agent", limit=1)] == [("bot", "a")]
        assert len(await app.jobs.usage("day", since=EPOCH + timedelta(microseconds=guarded.clock.now))) == 1
        assert await app.jobs.usage("tree", until=datetime(2020, 1, 1, tzinfo=UTC)) == []
