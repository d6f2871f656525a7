"""Notification channels: who is notified of which events, and the messages in the format of each kind.

A message names the job but contains neither payload, prompt, error nor result: it leaves the system. The page behind
its link shows them to those who may read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from interlock.domain.approval import RISKS
from interlock.domain.budget import PREFIX
from interlock.domain.webhook import Dispatch
from interlock.errors import Invalid

BUDGET_SPENT: Final = "budget.spent"
TITLES: Final = {
    "approval.requested": "Approval requested",
    "job.dead_letter": "Job moved to the dead letters",
    "job.failed": "Job failed",
    "worker.stale": "Worker is stale: a lease expired",
    BUDGET_SPENT: "Budget spent",
}
EVENTS: Final = tuple(TITLES)
DEFAULT_EVENTS: Final = ("approval.requested", "job.dead_letter", "worker.stale", BUDGET_SPENT)
TEST: Final = "channel.test"
MAX_CHANNELS: Final = 50
MAX_RECIPIENTS: Final = 50
DEFAULT_INTERVAL_SECONDS: Final = 60.0
URL_PREFIX: Final = "channel:"  # of the URL of the subscription that queues the deliveries of a channel
_MAX_VALUE_LENGTH: Final = 200


class Kind(StrEnum):
    """The receiver of a channel's messages."""

    SLACK = "slack"
    TEAMS = "teams"
    EMAIL = "email"
    WEBHOOK = "webhook"


class Tls(StrEnum):
    """How a connection to a mail server is encrypted: after STARTTLS, from the start, or not."""

    STARTTLS = "starttls"
    IMPLICIT = "implicit"
    NONE = "none"


class Address(NamedTuple):
    """The public part of a destination; all but the host is for e-mail."""

    host: str
    port: int | None = None
    tls: str | None = None
    username: str | None = None
    sender: str | None = None
    recipients: Sequence[str] = ()


class Credentials(NamedTuple):
    """The secret part of a destination, which is never returned: a URL may contain a token."""

    url: str | None = None
    secret: str | None = None
    password: str | None = None


class NewChannel(NamedTuple):
    """A validated channel to create or replace."""

    name: str
    kind: Kind
    address: Address
    credentials: Credentials
    events: tuple[str, ...]
    types: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    min_risk: str | None
    min_interval_seconds: float
    subscription_id: str
    created_by: str


class NotificationChannel(NamedTuple):
    """A stored channel, without its secrets; disabled after its receiver responded that it is gone."""

    name: str
    kind: Kind
    address: Address
    events: tuple[str, ...]
    types: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    min_risk: str | None
    min_interval_seconds: float
    failures: int
    disabled_at: int | None
    created_at: int
    created_by: str
    updated_at: int


class Target(NamedTuple):
    """Where a sender delivers the messages of a channel, with its secrets."""

    kind: Kind
    address: Address
    credentials: Credentials


class ChannelTest(NamedTuple):
    """The result of a test message: an HTTP or SMTP status code, or the reason why there is none."""

    delivered: bool
    status_code: int | None
    error: str | None


class Notice(NamedTuple):
    """The content of a message, before it is formatted; the link is None without the setting `public_url`."""

    id: str
    event: str
    title: str
    at: str
    facts: Sequence[tuple[str, str]]
    link: str | None
    data: Mapping[str, Any]


def to_text(value: Address | Credentials) -> str:
    return json.dumps({name: given for name, given in value._asdict().items() if given}, separators=(",", ":"))


def address_of(text: str) -> Address:
    given = json.loads(text)
    return Address(**given)._replace(recipients=tuple(given.get("recipients", ())))


def check_events(events: Sequence[str]) -> tuple[str, ...]:
    """Return the event names, or raise Invalid for an unknown or repeated one."""
    for i, event in enumerate(events):
        if event not in EVENTS:
            raise Invalid(f"{event!r} is not an event: expected {', '.join(EVENTS)}", pointer=f"/events/{i}")
    if not events or len(set(events)) != len(events):
        raise Invalid("events must name at least one event, and none twice", pointer="/events")
    return tuple(events)


def check_risk(risk: str | None) -> str | None:
    """Return the risk, or raise Invalid for an unknown one."""
    if risk is not None and risk not in RISKS:
        raise Invalid(f"min_risk is {risk!r}: expected {', '.join(RISKS)}", pointer="/min_risk")
    return risk


def ignored_risks(min_risk: str | None) -> tuple[str, ...] | None:
    """Return the risks below the minimum; any other risk, also an unknown one, is at or above it."""
    return None if min_risk is None else RISKS[: RISKS.index(min_risk)]


def notice(dispatch: Dispatch, at: str, public_url: str | None, risk: str | None = None) -> Notice:
    """Return the content of a delivery."""
    budget = None if dispatch.budget is None else dispatch.budget.removeprefix(PREFIX)
    facts = [] if budget is None else [("Budget", budget)]
    if dispatch.job_id:
        facts += [("Type", dispatch.type), ("Job", dispatch.job_id), ("Status", dispatch.status)]
    if dispatch.agent_kind is not None:
        facts.append(("Agent", f"{dispatch.agent_kind}/{dispatch.agent_id}"))
    if risk is not None:
        facts.append(("Risk", risk))
    if dispatch.tags:
        facts.append(("Tags", ", ".join(dispatch.tags)))
    if dispatch.folded:
        facts.append(("Similar events", f"{dispatch.folded} more"))
    page = f"/jobs/{dispatch.job_id}"
    if dispatch.approval_id is not None:
        page = f"/approvals/{dispatch.approval_id}"
    elif budget is not None and dispatch.budget != budget:  # that of a tree has no page but that of its root
        page = f"/budgets/{quote(budget, safe='')}"
    data = {
        "job_id": dispatch.job_id or None,
        "type": dispatch.type or None,
        "status": dispatch.status or None,
        "tags": list(dispatch.tags),
        "approval_id": dispatch.approval_id,
        "risk": risk,
        "budget": budget,
        "coalesced": dispatch.folded,
    }
    link = None if public_url is None else public_url + page
    return Notice(
        dispatch.id, dispatch.event, TITLES.get(dispatch.event, dispatch.event), at, _short(facts), link, data
    )


def test_notice(id: str, name: str, at: str, public_url: str | None) -> Notice:
    """Return the content of a test message."""
    title = "Test of a notification channel"
    return Notice(id, TEST, title, at, _short([("Channel", name)]), public_url, {"channel": name})


def plain_text(content: Notice) -> str:
    """Return a message as lines of plain text."""
    lines = [content.title, "", *(f"{name}: {value}" for name, value in content.facts), f"Time: {content.at}"]
    return "\n".join([*lines, "", content.link] if content.link else lines) + "\n"


def slack(content: Notice) -> dict[str, Any]:
    """Return a message of a Slack incoming webhook. Values are escaped plain text: they cannot mention or link."""
    fields = [_slack_text(f"{name}: {value}") for name, value in content.facts]
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _slack_text(content.title)},
        {"type": "section", "fields": fields},
    ]
    if content.link is not None:
        button = {"type": "button", "text": _slack_text("Open in Interlock"), "url": content.link}
        blocks.append({"type": "actions", "elements": [button]})
    summary = f"{content.title} ({content.facts[0][1]})"
    return {"text": _slack_escape(summary), "blocks": blocks}


def teams(content: Notice) -> dict[str, Any]:
    """Return a message of a Teams workflow: an adaptive card. Text runs, unlike text blocks, are not Markdown."""
    body: list[dict[str, Any]] = [
        {"type": "TextBlock", "text": content.title, "weight": "Bolder", "size": "Medium", "wrap": True},
        *(
            {
                "type": "RichTextBlock",
                "inlines": [
                    {"type": "TextRun", "text": f"{name}: ", "weight": "Bolder"},
                    {"type": "TextRun", "text": value},
                ],
            }
            for name, value in content.facts
        ),
    ]
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if content.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open in Interlock", "url": content.link}]
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def plain(content: Notice) -> dict[str, Any]:
    """Return a message of a plain webhook, in the envelope of subscriptions."""
    data = {"title": content.title, **content.data, "link": content.link}
    return {"id": content.id, "type": content.event, "timestamp": content.at, "data": data}


FORMATS: Final = {Kind.SLACK: slack, Kind.TEAMS: teams, Kind.WEBHOOK: plain}


def _short(facts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value[:_MAX_VALUE_LENGTH]) for name, value in facts]


def _slack_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": _slack_escape(text), "emoji": False}


def _slack_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
