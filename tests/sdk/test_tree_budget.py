"""The budget of a tree of jobs: an option of tasks, read and raised by app.jobs."""

from __future__ import annotations

from tests.support.apps import StoreApp


async def test_a_task_sets_the_budget_of_the_trees_of_its_jobs(app: StoreApp) -> None:
    @app.task(budget={"usd": 5})
    async def research() -> None: ...

    job = await research.enqueue()
    found = await app.jobs.budget(job.id)
    assert (found.name, found.amount) == (f"tree:{job.id}", {"usd": 5.0})
    assert found.created_at == (await app.jobs.get(job.id)).created_at
    assert (await app.jobs.raise_budget(job.id, {"usd": 2})).available == {"usd": 7.0}
    other = await research.options(budget={"usd": 1}).enqueue()
    assert (await app.jobs.budget(other.id)).amount == {"usd": 1.0}
