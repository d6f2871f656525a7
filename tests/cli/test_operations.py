"""Cancel, redrive and delete jobs on the command line."""

from __future__ import annotations

import json

from tests.cli.test_cli import CLI, cli

__all__ = ["cli"]
NEVER = "01890000-0000-7000-8000-000000000000"


def add(cli: CLI, *arguments: str) -> str:
    return cli("jobs", "add", *arguments).stdout.strip()


def status(cli: CLI, id: str) -> object:
    return cli.json("jobs", "show", id)["status"]


def test_a_job_is_cancelled_and_redriven(cli: CLI) -> None:
    id = add(cli, "t", '{"n": 1}', "--tag", "old")
    assert cli("jobs", "redrive", id).returncode == 4
    assert "cancelled" in cli("jobs", "cancel", id, "--reason", "enough").stdout
    assert cli.json("jobs", "show", id)["cancel_reason"] == "enough"
    new = cli.json("jobs", "redrive", id, "--priority", "3", "--payload", '{"n": 2}', "--retag", "new", "--key", "k")
    assert (new["redrive_of"], new["priority"], new["payload"], new["tags"]) == (id, 3, {"n": 2}, ["new"])
    again = cli("jobs", "redrive", id, "--priority", "3", "--payload", '{"n": 2}', "--retag", "new", "--key", "k")
    assert again.stdout == f"{new['id']} (replayed)\n"
    assert cli("jobs", "redrive", id, "--from", "nowhere").returncode == 4
    for command in ("cancel", "redrive", "revoke"):
        assert cli("jobs", command, NEVER).returncode == 3
    assert cli("jobs", "revoke", id).returncode == 4


def test_a_cascade_cancels_a_tree(cli: CLI) -> None:
    root = add(cli, "t")
    child = add(cli, "t", "--parent", root)
    assert cli.json("jobs", "cancel", root, "--cascade")["descendants"] == 1
    assert status(cli, child) == "cancelled"
    assert cli("jobs", "cancel", root, child, "--cascade", "--yes").returncode == 4


def test_a_bulk_operation_needs_confirmation(cli: CLI) -> None:
    ids = [add(cli, "many") for _ in range(3)]
    other = add(cli, "other")
    asked = cli("jobs", "cancel", "--type", "many")
    assert (asked.returncode, "use --yes" in asked.stderr, "cancel 3 jobs" in asked.stderr) == (4, True, True)
    assert cli("jobs", "cancel", "--type", "many", "--dry-run").stdout == "3 matched\n"
    assert {status(cli, id) for id in ids} == {"queued"}
    done = cli("jobs", "cancel", "--type", "many", "--yes")
    assert (done.returncode, done.stdout) == (0, "3 of 3 done\n")
    assert ({status(cli, id) for id in ids}, status(cli, other)) == ({"cancelled"}, "queued")
    assert cli("jobs", "redrive", "--status", "cancelled", "--yes").stdout == "3 of 3 done\n"
    assert cli("jobs", "redrive", "--status", "cancelled", "--yes").stdout == "0 of 0 done\n"
    assert cli("jobs", "redrive", "--status", "cancelled", "--yes", "--priority", "1").returncode == 4
    for nothing in (("jobs", "cancel", "--yes"), ("jobs", "cancel", *ids, "--type", "many", "--yes")):
        assert cli(*nothing).returncode == 4


def test_failed_items_are_named_and_the_rest_is_done(cli: CLI) -> None:
    one, two = add(cli, "t"), add(cli, "t")
    done = cli("jobs", "cancel", one, NEVER, two, "--yes", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["matched"], answer["done"], answer["more"]) == (4, 2, 2, False)
    assert [(item["id"], item["code"]) for item in answer["refused"]] == [(NEVER, "not_found")]


def test_terminal_jobs_are_deleted_only_after_confirmation(cli: CLI) -> None:
    old, live = add(cli, "t"), add(cli, "t")
    cli("jobs", "cancel", old)
    asked = cli("prune", "--days", "0")
    assert (asked.returncode, "delete 1 job of" in asked.stderr) == (4, True)
    assert cli("prune", "--days", "0", "--dry-run").stdout == "1 job would be deleted\n"
    assert cli("prune", "--days", "1", "--yes").stdout == "0 jobs were deleted\n"
    assert cli.json("prune", "--days", "0", "--yes") == {"deleted": 1, "matched": 1, "more": False}
    assert cli("jobs", "show", old).returncode == 3
    assert status(cli, live) == "queued"
    assert cli("audit", "verify").returncode == 0
    assert cli("prune", "--days", "-1", "--yes").returncode == 4
    assert cli("prune", "--yes").returncode == 2


def test_lists_filter_by_agent_and_missing_heartbeat(cli: CLI) -> None:
    id = add(cli, "t", "--agent", "planner/7")
    add(cli, "t")
    items = cli.json("jobs", "list", "--agent", "planner/7")["items"]
    assert isinstance(items, list)
    assert [item["id"] for item in items] == [id]
    assert cli.json("jobs", "list", "--stale", "60")["items"] == []
