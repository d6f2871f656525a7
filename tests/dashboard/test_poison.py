"""For any address or form the response is a page, never a server error."""

from __future__ import annotations

from urllib.parse import quote

import httpx2
import pytest

from interlock.dashboard.app import pages
from tests.dashboard.conftest import Board
from tests.dashboard.scene import Scene
from tests.support.eventually import RETRY_SECONDS
from tests.support.forms import IS_LONG

STRIDE = 1 if IS_LONG else 4  # in the short form, one page of so many gets each value
NAMES = (
    "status", "type", "agent", "tag", "worker", "parent", "stale_seconds", "created_after", "created_before", "before", "back",
    "after", "kind", "id", "verify", "jobs", "action", "scope", "notice", "n", "next", "token", "reason",
    "priority", "from", "key", "decision", "comment", "digest", "data", "url", "event", "types", "role", "worker_id",
    "expires_in_days", "filter", "description", "job", "actor", "from_seq", "last", "verified", "max_concurrency", "strict",
    "group_id", "min_interval_seconds", "capabilities", "repositories", "force", "cascade", "more", "revoke_reason",
    "fresh", "attention", "minutes", "name", "password", "port", "tags", "tls", "to",
    "run_at", "payload", "message", "message_id", "search", "topic",
    "concurrency", "rate", "per_seconds", "burst", "weights", "keyed", "fair", "amount", "per", "timezone", "on_exceed",
    "cron", "every_seconds", "overlap", "catch_up", "jitter_seconds", "starts_at", "ends_at", "others",
)  # fmt: skip
POISON = (
    "\x00", "\ud800", "'; drop table job; --", "%", "-1", "99999999999999999999999", "1e999", "nan", "0001-01-01T00:00",
    "9999-12-31T23:59", "a/b", "/", "{{7*7}}", "x" * 250, "18446744073709551616.x", "1.x", "²",
)  # fmt: skip


@pytest.mark.parametrize("value", POISON, ids=ascii)
async def test_unusual_values_are_rejected_or_shown_but_break_nothing(board: Board, stage: Scene, value: str) -> None:
    odd = value.encode("utf-8", "surrogatepass")
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        token = (await http.get("/queues")).text.partition('name="form_token" value="')[2].partition('"')[0]
        for number, page in enumerate(pages()):
            if (number + POISON.index(value)) % STRIDE:
                continue
            names = [name for name in NAMES if page.method == "GET" or name not in ("verify",)]
            form = "&".join(f"{name}=" + quote(odd, safe="") for name in names)
            for fields in (form, *(part for part in form.split("&") if page.method == "GET" and page.path == "/jobs")):
                path = stage.fill(page.path)
                if page.method == "GET":
                    answer = await http.get(f"{path}?{fields}")
                else:
                    headers = {"content-type": "application/x-www-form-urlencoded"}
                    answer = await http.post(path, content=f"{fields}&form_token={token}", headers=headers)
                assert answer.status_code < 500, (page.method, page.path, answer.text[-600:])
