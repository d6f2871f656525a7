"""`interlock subscriptions` from outside: the secret is shown once, and what was sent can be seen."""

from __future__ import annotations

import json

import pytest

from tests.cli.test_cli import CLI, cli

__all__ = ["cli"]  # the fixture

URL = "http://127.0.0.1:9/hook"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTERLOCK_WEBHOOKS_ALLOW", "127.0.0.1")


def test_a_subscription_is_created_renewed_and_deleted(cli: CLI) -> None:
    id, secret = cli("subscriptions", "create", URL, "--event", "job.cancelled", "--key", "k").stdout.split()
    assert secret.startswith("whsec_")
    again = cli.json("subscriptions", "create", URL, "--event", "job.cancelled", "--key", "k")
    assert (again["id"], again["secret"], again["replayed"]) == (id, None, True)
    listed = cli("subscriptions", "list").stdout
    assert id in listed
    assert secret not in listed + cli("subscriptions", "show", id).stdout
    assert cli("subscriptions", "rotate", id).stdout.strip() != secret
    assert cli.json("subscriptions", "renew", id, "--expires-in", "60")["active"] is True

    job = cli("jobs", "add", "t").stdout.strip()
    cli("jobs", "cancel", job)
    items = cli.json("subscriptions", "deliveries", id, "--job", job)["items"]
    assert isinstance(items, list)
    (delivery,) = items
    assert (delivery["event"], delivery["status"]) == ("job.cancelled", "pending")
    assert delivery["id"] in cli("subscriptions", "redeliver", delivery["id"]).stdout

    assert cli("subscriptions", "delete", id).returncode == 0
    assert cli("subscriptions", "list").stdout == "no subscriptions\n"


@pytest.mark.parametrize("engine", ["sqlite"])
def test_errors_of_a_subscription_are_printed(cli: CLI) -> None:
    unknown = "01890000-0000-7000-8000-000000000000"
    for command in ("show", "delete", "renew", "rotate", "deliveries", "redeliver"):
        assert cli("subscriptions", command, unknown).returncode == 3, command
    refused = cli("subscriptions", "create", URL, "--event", "job.eaten", "--json")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (4, "invalid")
    assert cli("subscriptions", "create", "http://10.0.0.1/x", "--event", "job.failed").returncode == 4
    assert cli("subscriptions", "create", URL).returncode == 2
