"""Notification channels: Slack, Teams, e-mail and plain webhooks."""

from __future__ import annotations

from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import Nothing, RequestContext, Response, RouteTable, respond
from interlock.wire import responses
from interlock.wire.channels import ChannelRequest, ChannelShape, ChannelTestShape, channel_to_dict

routes = RouteTable()


class ChannelPage(responses.Shape, frozen=True, kw_only=True):
    """Channels, by name."""

    items: list[ChannelShape]
    next_cursor: str | None


@routes.add("PUT", "/v1/channels/{name}", roles=["admin"], body=ChannelRequest, answers={200: ChannelShape})
async def set_channel(call: RequestContext[ChannelRequest, Nothing]) -> Response:
    """Create or replace a notification channel. Secrets are never returned."""
    return respond(channel_to_dict(await call.engine.channels.set(call.who, call.path["name"], call.body)))


@routes.add("GET", "/v1/channels", roles=["admin"], query=Page, answers={200: ChannelPage})
async def list_channels(call: RequestContext[None, Page]) -> Response:
    """List notification channels by name."""
    at, limit = cursor_position(call, "channels"), call.query.limit
    found = await call.engine.channels.page(call.who, after="" if at is None else str(at[0]), limit=limit)
    return page(
        call, "channels", [channel_to_dict(one) for one in found], more=len(found) == limit,
        end=[one.name for one in found[-1:]],
    )  # fmt: skip


@routes.add("GET", "/v1/channels/{name}", roles=["admin"], answers={200: ChannelShape})
async def get_channel(call: RequestContext[None, Nothing]) -> Response:
    """Return a notification channel without its secrets."""
    return respond(channel_to_dict(await call.engine.channels.get(call.who, call.path["name"])))


@routes.add("DELETE", "/v1/channels/{name}", roles=["admin"], answers={204: None})
async def delete_channel(call: RequestContext[None, Nothing]) -> Response:
    """Delete a notification channel and its pending messages."""
    await call.engine.channels.delete(call.who, call.path["name"])
    return Response(204, media_type="")


@routes.add(
    "POST", "/v1/channels/{name}/test", roles=["admin"], body=Nothing, body_optional=True,
    answers={200: ChannelTestShape},
)  # fmt: skip
async def test_channel(call: RequestContext[Nothing, Nothing]) -> Response:
    """Send a test message immediately, once, and return the result."""
    result = await call.engine.channels.test(call.who, call.path["name"])
    return respond(result._asdict())
