"""`interlock limits`: list, show, set, delete, hold, release, keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Final

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.runner import ANYWHERE, Anywhere, Limit, run
from interlock.client.port import Client
from interlock.domain.limits import BucketState, LimitState
from interlock.errors import Invalid
from interlock.wire.limits import LimitRequest, Rate, bucket_to_dict, limit_to_dict

app = App(name="limits", help="Bound how many jobs run concurrently, and how much of a unit they use over time.")

Key = Annotated[str | None, Parameter(help="the key, for a limit with keys")]

_COLUMNS: Final = ("used", "available", "waiting", "held until", "reason")


@app.default
@app.command(name="list")
def list_(
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only limits after this name, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List limits by name."""
    found = run(common, lambda client: client.limits.list(after=after, limit=limit))
    common.show_list(
        "limits",
        found,
        limit_to_dict,
        ("name", "concurrency", "rate", "keyed", *_COLUMNS),
        lambda one: (one.limit.name, one.limit.concurrency, _rate(one), _keys(one), *_state(one.state)),
    )


@app.command
def show(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Print one limit and its state."""
    common.show_facts(limit_to_dict(run(common, lambda client: client.limits.get(name))))


@app.command
def keys(
    name: str,
    *,
    limit: Limit = 50,
    after: Annotated[str, Parameter(help="list only keys after this one, to continue a list")] = "",
    common: Anywhere = ANYWHERE,
) -> None:
    """List the keys of a limit that jobs have used, with their state."""
    found = run(common, lambda client: client.limits.keys(name, after=after, limit=limit))
    common.show_list("keys", found, bucket_to_dict, ("key", *_COLUMNS), lambda one: (one.key, *_state(one)))


@app.command(name="set")
def set_(
    name: str,
    *,
    concurrency: Annotated[int | None, Parameter(help="largest number of running jobs")] = None,
    rate: Annotated[
        list[str] | None,
        Parameter(negative=(), help="amount of a unit in each period, such as tokens=40000; repeatable"),
    ] = None,
    per: Annotated[float, Parameter(help="seconds of a period")] = 60.0,
    burst: Annotated[
        list[str] | None,
        Parameter(negative=(), help="largest amount at one time, such as tokens=8000; default: that of one period"),
    ] = None,
    keyed: Annotated[bool, Parameter(negative=(), help="each key that jobs name has its own room")] = False,
    fair: Annotated[bool, Parameter(negative=(), help="serve keys round-robin; requires --keyed")] = False,
    weight: Annotated[
        list[str] | None,
        Parameter(negative=(), help="weight of a key, such as gold=3; default 1; repeatable; requires --fair"),
    ] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Create or update a limit. A lower concurrency takes effect as jobs end."""

    async def put(client: Client) -> LimitState:
        rates, bursts = amounts_of(rate, "rate"), amounts_of(burst, "burst")
        if bursts and not rates:
            raise Invalid("--burst requires --rate", pointer="/burst")
        asked = Rate(units=rates, per_seconds=per, burst=bursts or None) if rates else None
        weights = amounts_of(weight, "weight", "KEY=NUMBER")
        return await client.limits.set(
            name, LimitRequest(concurrency=concurrency, rate=asked, keyed=keyed, fair=fair, weights=weights or None)
        )

    made = run(common, put)
    common.show(limit_to_dict(made), f"{name}: set")


@app.command
def delete(name: str, *, common: Anywhere = ANYWHERE) -> None:
    """Delete a limit that no unfinished job names."""
    run(common, lambda client: client.limits.delete(name))
    common.show({"deleted": name}, f"{name}: deleted")


@app.command
def hold(
    name: str,
    *,
    until: Annotated[datetime, Parameter(help="a time with an offset, at most 30 days from now")],
    key: Key = None,
    reason: Annotated[str | None, Parameter(help="why, for other people")] = None,
    common: Anywhere = ANYWHERE,
) -> None:
    """Lease no job that names the limit until a time. The later time of two holds wins."""
    held = run(common, lambda client: client.limits.hold(name, until, key=key, reason=reason))
    common.show(limit_to_dict(held), f"{name}: held")


@app.command
def release(name: str, *, key: Key = None, common: Anywhere = ANYWHERE) -> None:
    """End the hold of a limit."""
    released = run(common, lambda client: client.limits.release(name, key=key))
    common.show(limit_to_dict(released), f"{name}: released")


def amounts_of(given: Iterable[str] | None, what: str, form: str = "UNIT=AMOUNT") -> dict[str, float]:
    """Parse amounts such as `tokens=8000`."""
    found = {}
    for one in given or ():
        unit, equals, amount = one.rpartition("=")
        try:
            found[unit] = float(amount)
        except ValueError:
            equals = ""
        if not equals:
            raise Invalid(f"--{what} is {one!r}: expected {form}", pointer=f"/{what}")
    return found


def _rate(one: LimitState) -> str:
    return f"{units(one.limit.units)} per {one.limit.per_seconds:g} s" if one.limit.units else ""


def _state(one: BucketState) -> tuple[object, ...]:
    return one.used, units(one.available), one.waiting, output.time(one.held_until), output.shortened(one.hold_reason)


def units(amounts: Mapping[str, float]) -> str:
    """Return amounts for people."""
    return ", ".join(f"{unit} {amount:.10g}" for unit, amount in amounts.items())


def _keys(one: LimitState) -> str:
    return "fair" if one.limit.fair else "yes" if one.limit.keyed else ""
