"""Messages to a job: its inbox, which the job reads and can wait for."""

from __future__ import annotations

import msgspec

from interlock.api import auth
from interlock.api.native.encode import kept
from interlock.api.native.leases import Seq
from interlock.api.native.pagination import Page, cursor_position, page
from interlock.api.routes import ABSENT, Nothing, Request, RequestContext, Response, RouteTable, respond
from interlock.errors import Forbidden, Invalid
from interlock.wire import responses
from interlock.wire.encode import message_to_dict

routes = RouteTable()


class MessageRequest(Request, frozen=True, kw_only=True):
    """A message. With an `id`, a repeated request returns the first message."""

    name: str
    payload: msgspec.Raw = ABSENT
    id: str | None = None


class PublishRequest(Request, frozen=True, kw_only=True):
    """A message to a topic. With an `id`, a repeated request delivers nothing more."""

    payload: msgspec.Raw = ABSENT
    id: str | None = None
    retain_seconds: float = 0.0


class MessageQuery(Page, frozen=True, kw_only=True):
    """The messages to list: those of a name, and with `after` only those with a higher number."""

    name: str | None = None
    topic: str | None = None
    after: Seq | None = None


@routes.add(
    "POST", "/v1/jobs/{job_id}/messages", roles=["operate"], on_condition=["produce", "work"], body=MessageRequest,
    sanitizes=True, answers={201: responses.Message, 200: responses.Message},
)  # fmt: skip
async def send_message(call: RequestContext[MessageRequest, Nothing]) -> Response:
    """Send a message to a job. Callers without the role `operate` need a job of the same tree."""
    body = call.body
    if not call.who.may("operate") and not await call.engine.messages.is_in_tree_of(call.who, call.job_id):
        await call.engine.queries.job(call.who.tenant, call.job_id)  # 404 if it is unknown
        raise Forbidden(
            "this needs the role operate, or produce and a job of the same tree that you created, or the lease of one"
        )
    sent = await call.engine.messages.sent(call.who, call.job_id, body.name, kept(body.payload), id=body.id)
    return respond(message_to_dict(sent.message), 201 if sent.is_new else 200)


@routes.add(
    "GET", "/v1/jobs/{job_id}/messages", roles=["read"], on_condition=["work"], query=MessageQuery,
    answers={200: responses.MessagePage},
)  # fmt: skip
async def list_messages(call: RequestContext[None, MessageQuery]) -> Response:
    """List the messages of a job, oldest first."""
    job, query = await auth.readable(call), call.query
    scope = f"messages {job.id} {query.name or ''} {query.topic or ''}"
    at = cursor_position(call, scope)
    if at is not None and query.after is not None:
        raise Invalid("give a cursor or after, not both", pointer="/after")
    after = (query.after or 0) if at is None else int(at[0])
    found = await call.engine.messages.of_job(
        call.who.tenant, job.id, name=query.name, topic=query.topic, after=after, limit=query.limit
    )  # fmt: skip
    return page(
        call, scope, [message_to_dict(one) for one in found], more=len(found) == query.limit,
        end=[found[-1].seq if found else after],
    )  # fmt: skip


@routes.add(
    "POST", "/v1/topics/{topic}/messages", roles=["produce"], body=PublishRequest, sanitizes=True,
    answers={201: responses.Published, 200: responses.Published},
)  # fmt: skip
async def publish_message(call: RequestContext[PublishRequest, Nothing]) -> Response:
    """Send a message to all jobs that wait for a topic, and to those that begin to wait within `retain_seconds`."""
    body = call.body
    done = await call.engine.messages.publish(
        call.who, call.path["topic"], kept(body.payload), id=body.id, retain_seconds=body.retain_seconds
    )
    return respond({"id": done.id, "delivered": done.delivered}, 201 if done.is_new else 200)
