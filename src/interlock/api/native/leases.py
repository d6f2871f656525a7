"""Acting as the holder of a job: under the name that was given, or the one its fence was granted to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from interlock.api import auth
from interlock.api.routes import RequestContext
from interlock.domain.job import Rejected
from interlock.errors import Error, LeaseLost

T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - an order


class LeaseProof(Protocol):
    """The lease that a request is about."""

    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str | None: ...


class LeaseProofItem(LeaseProof, Protocol):
    """A lease in a batch, which names its job."""

    @property
    def id(self) -> str: ...


async def as_holder(
    call: RequestContext[Any, Any],
    lease: LeaseProof,
    act: Callable[[str, str], Awaitable[T]],
    *,
    job_id: str | None = None,
) -> T:
    """Act on a job, that of the path. A worker that runs as several instances need not name its instance."""
    job_id = call.job_id if job_id is None else job_id
    name = auth.worker_name(call.who, lease.worker)
    try:
        return await act(job_id, name)
    except LeaseLost:
        holder = await _other_holder(call, job_id, lease, name)
        if holder is None:
            raise
    return await act(job_id, holder)


async def as_holders(
    call: RequestContext[Any, Any],
    items: Sequence[LeaseProofItem],
    order: Callable[[int, str], O],
    act: Callable[[str, Sequence[O]], Awaitable[list[T | Rejected]]],
) -> list[T | Rejected]:
    """The same for a batch; each command is built from the index of its item and a name.

    Those whose holder has to be looked up go in a second batch.
    """
    made = [_made(call, order, i, item) for i, item in enumerate(items)]
    good = [one for one in made if not isinstance(one, Rejected)]
    results = iter(await act(call.who.tenant, good) if good else ())
    answers = [one if isinstance(one, Rejected) else next(results) for one in made]
    again: dict[int, str] = {}
    for i, given in enumerate(answers):
        if isinstance(given, Rejected) and isinstance(given.error, LeaseLost):
            holder = await _other_holder(call, items[i].id, items[i], auth.worker_name(call.who, items[i].worker))
            if holder is not None:
                again[i] = holder
    if again:
        orders = [order(i, holder) for i, holder in again.items()]
        for i, given in zip(again, await act(call.who.tenant, orders), strict=True):
            answers[i] = given
    return answers


def _made(call: RequestContext[Any, Any], order: Callable[[int, str], O], i: int, item: LeaseProofItem) -> O | Rejected:
    """Build the command for one item; an invalid item, or one with another caller's worker, is rejected alone."""
    try:
        return order(i, auth.worker_name(call.who, item.worker))
    except Error as error:
        return Rejected(error)


async def _other_holder(call: RequestContext[Any, Any], job_id: str, lease: LeaseProof, tried: str) -> str | None:
    """The instance that the fence was granted to, if the caller left it open and it is one of theirs."""
    if lease.worker is not None:
        return None
    holder = await call.engine.holders.of(call.who.tenant, job_id, lease.fence)
    return holder if holder != tried and auth.is_own_worker(call.who, holder) else None
