"""Enqueue a job: a form generated from the schema of its type, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import msgspec

from interlock import wire
from interlock.dashboard import forms
from interlock.dashboard.http import Fields, PageRequest, PageResponse, Pages, View, field_errors, redirect, show
from interlock.domain.timestamps import EPOCH
from interlock.errors import Error, FieldError, IdempotencyKeyReuse, Invalid, NotFound, TooLarge
from interlock.wire import JobRequest

pages = Pages()

MAX_SUGGESTED_TYPES: Final = 200
OPTIONS: Final = frozenset({"type", "priority", "run_at", "tags"})  # fields beside the payload
ANY_JSON: Final = "{}"  # the schema of a type without one


@pages.get("/jobs/new", roles=["produce"])
async def form(request: PageRequest) -> View | PageResponse:
    """Show the form of a type; without one, ask for it."""
    return await _view(request, request.query.one("type"))


@pages.post("/jobs/new", roles=["produce"])
async def enqueue(request: PageRequest) -> View | PageResponse:
    """Enqueue a job; submitting the same form twice creates one."""
    type = request.form.one("type")
    try:
        if type is None:
            raise Invalid("required: enter a type", pointer="/type")
        payload = forms.data(await _schema(request, type), request.form)
        (made,) = await request.client.jobs.enqueue([_job(request.form, type, payload or "{}")])
    except (Invalid, TooLarge, IdempotencyKeyReuse) as error:
        return await _view(request, type, rejected=error)
    return redirect(f"/jobs/{made.id}", notice="enqueued")


async def _view(request: PageRequest, type: str | None, *, rejected: Error | None = None) -> View:
    errors: dict[str, str] = {}
    schema = None
    if type is not None:
        try:
            schema = await _schema(request, type)
        except Invalid as error:
            errors, type = {"type": str(error)}, None
    inputs: Sequence[forms.Input] = [] if schema is None else forms.inputs(schema, None)
    others: list[str] = []
    if isinstance(rejected, Invalid):
        faults = [one._replace(pointer=_in_form(one.pointer)) for one in rejected.faults]
        inputs, others = _with_errors(inputs, request.form, [one for one in faults if _is_data(one)])
        if of_options := [one for one in faults if not _is_data(one)]:
            found = field_errors(Invalid("", faults=of_options))
            errors |= {name: text for name, text in found.items() if name in OPTIONS}
            others += [text for name, text in found.items() if name not in OPTIONS]
    elif rejected is not None:
        inputs, others = forms.with_submitted(inputs, request.form), [str(rejected)]
    types = await request.client.types.list()
    queues = await request.client.queues.list(limit=MAX_SUGGESTED_TYPES)
    return show(
        "enqueue.html",
        status=200 if rejected is None else rejected.status,
        type=type,
        types=sorted({one.name for one in types} | {one.type for one in queues})[:MAX_SUGGESTED_TYPES],
        has_schema=schema not in (None, ANY_JSON),
        inputs=inputs,
        errors=errors,
        others=others,
        sent=request.form,
        key=request.form.one("key") or wire.new_id(),
    )


def _with_errors(
    inputs: Sequence[forms.Input], form: Fields, faults: Sequence[FieldError]
) -> tuple[Sequence[forms.Input], list[str]]:
    """Return the fields with what was submitted and their errors, and the errors that belong to none."""
    by_pointer, others = forms.errors_by_pointer(inputs, Invalid("", faults=faults)) if faults else ({}, [])
    return forms.with_submitted(inputs, form, by_pointer), others


async def _schema(request: PageRequest, type: str) -> str:
    try:
        return (await request.client.types.get(type)).schema or ANY_JSON
    except NotFound:
        return ANY_JSON


def _job(form: Fields, type: str, payload: str) -> JobRequest:
    run_at = form.timestamp("run_at")
    request = JobRequest(
        type=type,
        payload=msgspec.Raw(payload.encode()),
        tags=[tag.strip() for tag in (form.one("tags") or "").split(",") if tag.strip()],
        idempotency_key=form.one("key"),
    )
    if (priority := form.integer("priority")) is not None:
        request = msgspec.structs.replace(request, priority=priority)
    if run_at is not None:
        request = msgspec.structs.replace(request, run_at=EPOCH + timedelta(microseconds=run_at))
    return request


def _in_form(pointer: str) -> str:
    """Return the pointer of a form field for that of a request member."""
    for member, field in (("/payload", f"/{forms.DATA}"), ("/idempotency_key", "/key")):
        if pointer == member or pointer.startswith(f"{member}/"):
            return field + pointer.removeprefix(member)
    return pointer


def _is_data(fault: FieldError) -> bool:
    return fault.pointer == f"/{forms.DATA}" or fault.pointer.startswith(f"/{forms.DATA}/")
