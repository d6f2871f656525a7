"""Words of a client of codeQ's webhooks, and of a receiver of them."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

from interlock.domain.webhook_url import Allowance
from tests.adapters.responses import json_of
from tests.api.rig import Api
from tests.support.receiver import Seen

BASE = "/v1/codeq"
SUBSCRIPTIONS = f"{BASE}/workers/subscriptions"
HERE = Allowance.of(["127.0.0.0/8"])
SECRET = "the secret that receivers of codeQ know"


async def create(api: Api, command: str = "render", **more: Any) -> str:
    body = json.dumps({"command": command, "payload": {}, **more}).encode()
    return str(json_of(await api.send(f"{BASE}/tasks", body), 202)["id"])


async def claim(api: Api) -> str:
    return str(json_of(await api.send(f"{BASE}/tasks/claim", b"{}"), 200)["id"])


async def subscribe(api: Api, url: str, more: str = "") -> dict[str, Any]:
    body = f'{{"callbackUrl":"{url}","minIntervalSeconds":0{more}}}'
    made: dict[str, Any] = json_of(await api.send(SUBSCRIPTIONS, body.encode()), 200)
    return made


def genuine(seen: Seen, secret: str = SECRET) -> Any:
    """Return the body of a request whose signature is valid, checked as the codeQ docs ask receivers to."""
    stamp = seen.headers["x-codeq-timestamp"]
    assert stamp.isdigit()
    expected = hmac.new(secret.encode(), f"{stamp}.".encode() + seen.body, hashlib.sha256).hexdigest()
    assert seen.headers["x-codeq-signature"] == expected
    assert seen.headers["content-type"] == "application/json"
    return json.loads(seen.body)
