"""Acting as the holder of a job: under the name that was given, or the one its fence was granted to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from interlock.api import auth
from interlock.api.routes import Call
from interlock.domain.job import Refused
from interlock.errors import Error, LeaseLost

T = TypeVar("T")
O = TypeVar("O")  # noqa: E741 - an order


class Grant(Protocol):
    """The lease that a request is about."""

    @property
    def fence(self) -> int: ...
    @property
    def worker(self) -> str | None: ...


class Item(Grant, Protocol):
    """A lease in a batch, which names its job."""

    @property
    def id(self) -> str: ...


async def as_holder(
    call: Call[Any, Any], grant: Grant, act: Callable[[str, str], Awaitable[T]], *, job_id: str | None = None
) -> T:
    """Act on a job, that of the path. A worker that runs as several instances need not name its instance."""
    job_id = call.job_id if job_id is None else job_id
    name = auth.worker_name(call.who, grant.worker)
    try:
        return await act(job_id, name)
    except LeaseLost:
        holder = await _other_holder(call, job_id, grant, name)
        if holder is None:
            raise
    return await act(job_id, holder)


async def as_holders(
    call: Call[Any, Any],
    items: Sequence[Item],
    order: Callable[[int, str], O],
    act: Callable[[str, Sequence[O]], Awaitable[list[T | Refused]]],
) -> list[T | Refused]:
    """The same for a batch; each command is built from the index of its item and a name.

    Those whose holder has to be looked up go in a second batch.
    """
    made = [_made(call, order, i, item) for i, item in enumerate(items)]
    good = [one for one in made if not isinstance(one, Refused)]
    told = iter(await act(call.who.tenant, good) if good else ())
    answers = [one if isinstance(one, Refused) else next(told) for one in made]
    again: dict[int, str] = {}
    for i, given in enumerate(answers):
        if isinstance(given, Refused) and isinstance(given.error, LeaseLost):
            holder = await _other_holder(call, items[i].id, items[i], auth.worker_name(call.who, items[i].worker))
            if holder is not None:
                again[i] = holder
    if again:
        orders = [order(i, holder) for i, holder in again.items()]
        for i, given in zip(again, await act(call.who.tenant, orders), strict=True):
            answers[i] = given
    return answers


def _made(call: Call[Any, Any], order: Callable[[int, str], O], i: int, item: Item) -> O | Refused:
    """The order for one item; one that cannot be made, or names a worker of others, is refused alone."""
    try:
        return order(i, auth.worker_name(call.who, item.worker))
    except Error as error:
        return Refused(error)


async def _other_holder(call: Call[Any, Any], job_id: str, grant: Grant, tried: str) -> str | None:
    """The instance that the fence was granted to, if the caller left it open and it is one of theirs."""
    if grant.worker is not None:
        return None
    holder = await call.engine.holders.of(call.who.tenant, job_id, grant.fence)
    return holder if holder != tried and auth.is_own_worker(call.who, holder) else None
