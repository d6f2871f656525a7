"""`interlock channels`: list, show, set, delete, test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.client.port import Client
from interlock.domain.channel import DEFAULT_EVENTS, DEFAULT_INTERVAL_SECONDS, EVENTS, Kind, NotificationChannel, Tls
from interlock.errors import Invalid
from interlock.wire.channels import ChannelRequest, channel_to_dict

app = App(name="channels", help="Send messages about events to people: Slack, Teams, e-mail or a webhook.")

_SECRET = "text, @FILE, or - for standard input"


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only channels after this name, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List notification channels by name, without their secrets."""
    found = run(common, lambda client: client.channels.list(after=after, limit=limit))
    common.show_list(
        "channels",
        found,
        channel_to_dict,
        ("name", "kind", "destination", "events", "types", "tags", "min risk", "disabled"),
        lambda one: (
            one.name, one.kind, _destination(one), " ".join(one.events), " ".join(one.types or ()),
            " ".join(one.tags or ()), one.min_risk, output.time(one.disabled_at),
        ),
    )  # fmt: skip


@app.command
def show(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Print one notification channel, without its secrets."""
    common.show_facts(channel_to_dict(run(common, lambda client: client.channels.get(name))))


@app.command(name="set")
def set_(
    name: str,
    *,
    kind: Annotated[Kind, Parameter(help="receiver of the messages")],
    url: Annotated[str | None, Parameter(help=f"URL for slack, teams and webhook: {_SECRET}")] = None,
    secret: Annotated[str | None, Parameter(help=f"signing secret for webhook: {_SECRET}")] = None,
    host: Annotated[str | None, Parameter(help="mail server")] = None,
    port: Annotated[int | None, Parameter(help="port of the mail server; default: by --tls")] = None,
    tls: Annotated[Tls | None, Parameter(help="encryption of the connection to the mail server")] = None,
    username: Annotated[str | None, Parameter(help="user of the mail server")] = None,
    password: Annotated[str | None, Parameter(help=f"password of that user: {_SECRET}")] = None,
    sender: Annotated[str | None, Parameter(name="--from", help="address of the sender of e-mails")] = None,
    to: Annotated[tuple[str, ...], Parameter(help="address of a recipient of e-mails; may be repeated")] = (),
    event: Annotated[tuple[str, ...], Parameter(help=f"one of {', '.join(EVENTS)}; may be repeated")] = DEFAULT_EVENTS,
    type: Annotated[tuple[str, ...], Parameter(help="only jobs of this type; may be repeated")] = (),
    tag: Annotated[tuple[str, ...], Parameter(help="only jobs with one of these tags; may be repeated")] = (),
    min_risk: Annotated[str | None, Parameter(help="only approvals from this risk on, such as high")] = None,
    min_interval: Annotated[
        float, Parameter(help="minimum seconds between messages; bursts are coalesced")
    ] = DEFAULT_INTERVAL_SECONDS,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or replace a notification channel."""

    async def put(client: Client) -> NotificationChannel:
        request = ChannelRequest(
            kind=kind, events=[*event], types=[*type] or None, tags=[*tag] or None, min_risk=min_risk,
            min_interval_seconds=min_interval, url=_text(url, "url"), secret=_text(secret, "secret"), host=host,
            port=port, tls=tls, username=username, password=_text(password, "password"), sender=sender,
            recipients=[*to],
        )  # fmt: skip
        return await client.channels.set(name, request)

    made = run(common, put)
    common.show(channel_to_dict(made), f"{name}: set")


@app.command
def delete(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a notification channel and its pending messages."""
    run(common, lambda client: client.channels.delete(name))
    common.show({"deleted": name}, f"{name}: deleted")


@app.command(name="test")
def send_test(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Send a test message immediately, and print the result."""
    tested = run(common, lambda client: client.channels.test(name))
    result = "delivered" if tested.delivered else f"not delivered: {tested.error}"
    common.show(tested._asdict(), f"{name}: {result}")


def _destination(one: NotificationChannel) -> str:
    return ", ".join(one.address.recipients) or one.address.host


def _text(value: str | None, what: str) -> str | None:
    """Return a secret, which is best not part of a command line."""
    if value is None or not value.startswith(("-", "@")):
        return value
    if value == "-":
        return sys.stdin.read().strip()
    try:
        return Path(value[1:]).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {value[1:]}: {error}", pointer=f"/{what}") from error
