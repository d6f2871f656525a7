"""Approvals on the command line: output, decisions and exit codes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from interlock import assemble
from interlock.domain.approval import Approval, Decision, RequestApproval
from interlock.domain.lifecycle import Status
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.errors import NotFound
from interlock.wire import job_request
from tests.cli.test_cli import CLI, cli

__all__ = ["cli"]  # the fixture


def approvals(cli: CLI, *prompts: str, schema: str | None = None) -> list[Approval]:
    """A waiting job for each prompt."""

    async def ask() -> list[Approval]:
        found = []
        async with assemble.open_engine(cli.database) as engine:
            for prompt in prompts:
                await engine.jobs.enqueue(local(), job_request({"type": "t", "payload": {"mail": "all"}}))
                (job,) = await engine.leases.claim("default", ClaimFilter("w"))
                order = RequestApproval(job.id, job.fence, "w", "", prompt, schema=schema)
                approval = (await engine.approvals.open(local(), order)).approval
                assert approval is not None
                found.append(approval)
        return found

    return asyncio.run(ask())


def status(cli: CLI, approval: Approval) -> object:
    return cli.json("jobs", "show", approval.job_id)["status"]


def test_pending_approvals_are_listed_newest_first_and_shown_with_their_requests(cli: CLI) -> None:
    first, second = approvals(cli, "Send \x1b[31mit?", "And this?")
    plain = cli("approvals", "list").stdout
    assert plain.index(second.id) < plain.index(first.id)
    assert "\x1b" not in plain
    assert "0/1" in plain
    items = cli.json("approvals", "list", "--limit", "1", "--before", second.id)["items"]
    assert isinstance(items, list)
    assert [item["id"] for item in items] == [first.id]
    assert '{"mail":"all"}' in cli("approvals", "show", first.id).stdout
    encoded = cli.json("approvals", "show", first.id)
    assert (encoded["digest"], encoded["status"], encoded["votes"]) == (first.digest, "open", [])
    assert not [field for field in encoded if "token" in field]


def test_a_link_is_created_and_the_end_of_an_id_selects_an_approval(cli: CLI) -> None:
    (approval,) = approvals(cli, "Send it?")
    link = cli("approvals", "link", approval.id[-8:]).stdout.strip()
    assert link.startswith("http://127.0.0.1:8420/approve#")
    second: Any = cli.json("approvals", "link", approval.id, "--url", "https://queue.example/")
    assert second["link"] == f"https://queue.example/approve#{second['token']}"
    assert second["approval"]["id"] == approval.id

    async def decide(token: str) -> Approval:
        async with assemble.open_engine(cli.database) as engine:
            return await engine.approvals.decide_by_token(token, Decision.APPROVE)

    with pytest.raises(NotFound):  # the second link has replaced the first
        asyncio.run(decide(link.partition("#")[2]))
    assert asyncio.run(decide(second["token"])).id == approval.id
    assert cli.json("approvals", "show", approval.id[-12:])["status"] == "approved"
    assert cli("approvals", "link", approval.id).returncode == 4
    assert cli("approvals", "link", "0" * 8).returncode == 3
    assert cli("approvals", "list", "--job", "01890000-0000-7000-8000-000000000000").returncode == 3


def test_an_approve_resumes_the_job_and_a_repeat_prints_the_same(cli: CLI) -> None:
    (approval,) = approvals(cli, "Send it?", schema='{"type": "integer"}')
    assert cli("approvals", "approve", approval.id, "--data", '"much"').returncode == 4
    assert cli("approvals", "approve", approval.id, "--digest", "0" * 64).returncode == 4
    for _ in range(2):
        done = cli("approvals", "approve", approval.id, "--data", "5", "--comment", "fine", "--digest", approval.digest)
        assert (done.returncode, done.stdout) == (0, "approved\n")
    assert status(cli, approval) == Status.QUEUED
    refused = cli("approvals", "deny", approval.id, "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (4, "already_decided")
    assert cli("approvals", "list").stdout == "no approvals\n"
    assert approval.id in cli("approvals", "list", "--all").stdout
    assert approval.id in cli("approvals", "list", "--status", "approved", "--job", approval.job_id).stdout


def test_a_deny_ends_the_job(cli: CLI) -> None:
    (approval,) = approvals(cli, "Send it?")
    assert cli("approvals", "deny", approval.id, "--comment", "no").stdout == "denied\n"
    assert status(cli, approval) == Status.FAILED


@pytest.mark.parametrize("command", ["show", "approve", "deny"])
def test_an_unknown_approval_is_exit_code_3(cli: CLI, command: str) -> None:
    done = cli("approvals", command, "0193a1b2-ffff-7fff-8fff-ffffffffffff")
    assert done.returncode == 3
    assert "no approval 0193a1b2" in done.stderr
