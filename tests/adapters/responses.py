"""Requests and expected responses of the adapter tests, as bytes on the wire."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2

NEVER = "0193a1b2-ffff-7fff-8fff-ffffffffffff"
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


def json_of(response: httpx2.Response, status: int) -> Any:
    """The JSON of an answer with this status."""
    assert response.status_code == status, (response.status_code, response.text)
    assert response.headers["content-type"] == "application/json"
    return json.loads(response.content)


def assert_response(response: httpx2.Response, status: int, body: bytes) -> None:
    """The answer is this, byte for byte."""
    assert (response.status_code, response.content) == (status, body)
    assert response.headers["content-type"] == "application/json"
