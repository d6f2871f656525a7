"""A fleet of agent CLIs: one job plans, and each issue is a job that `interlock agent run` gives to a CLI."""

from __future__ import annotations

import asyncio
import sys

import interlock

app = interlock.App()
fleet = interlock.App()  # tasks of other workers: declared here, so that their jobs can be created


@fleet.task(limits=["claude"], max_attempts=3)
async def fix(prompt: str) -> str:
    """Fix an issue. `interlock agent run --type fix` runs these jobs, not this function."""
    raise NotImplementedError


@app.task
async def sweep(ctx: interlock.Context, issues: list[str]) -> dict[str, str]:
    """Give each issue to an agent and collect what they report. Meanwhile this job holds no worker."""
    agents = await ctx.enqueue_many(fix, [{"prompt": f"Fix this issue: {issue}"} for issue in issues])
    reports: dict[str, str] = {}
    for issue, agent in zip(issues, agents, strict=True):
        try:
            reports[issue] = await agent.result()
        except (interlock.JobFailed, interlock.JobCancelled) as error:
            reports[issue] = f"not fixed: {error}"
    return reports


async def main(issues: list[str]) -> None:
    async with app:
        job = await sweep.enqueue(issues)
        print(job.id)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or ["the cart loses an item", "the price ignores taxes"]))
