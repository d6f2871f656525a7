"""What the runs of a command use. It is noted in the checkpoint, so that the usage of a killed run is not lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from interlock.agent_cli.adapter import together
from interlock.sdk.context import Context

Amounts = Mapping[str, float]


class UsageNotes:
    """The usage of a run, in the members `cost`, `used` and `running` of the saved progress.

    `running` is what a run has used; the next run reports it if that run could not. `used` is the usage of the session,
    for commands that report that of the whole session.
    """

    def __init__(self, context: Context, saved: dict[str, Any], *, is_cumulative: bool) -> None:
        self._context, self._is_cumulative = context, is_cumulative
        last = saved.get("running") or {}
        is_own = last.get("job") == context.id
        if not is_own:  # a redriven job has the progress of another one, not its cost
            saved.pop("cost", None)
        is_lost = is_own and all(one.fence != last["fence"] for one in context._usages)
        self._unreported: Amounts = last["used"] if is_lost else {}
        self._before = self._unreported  # of a lost run, and of earlier commands of this run
        self._own: Amounts = {}  # of the command that runs
        self._session: Amounts = {}
        self._cost = 0.0

    @property
    def unreported(self) -> dict[str, float]:
        return together([self._unreported, self._own])

    def begin(self, saved: Mapping[str, Any]) -> None:
        """Begin with a command."""
        self._session, self._cost = saved.get("used") or {}, float(saved.get("cost", 0))

    def note(self, saved: dict[str, Any], usage: Amounts) -> None:
        """Note what the command has used until now."""
        own = dict(usage)
        if self._is_cumulative and own:
            saved["used"] = own
            own = {name: max(0, amount - self._session.get(name, 0)) for name, amount in own.items()}
        saved["cost"] = self._cost + own.get("usd", 0)
        used = together([self._before, own])
        saved["running"] = {"job": self._context.id, "fence": self._context.job.fence, "used": used}
        self._own = own

    def end(self, saved: dict[str, Any], usage: Amounts) -> dict[str, float]:
        """Note what the command has used in all, and return what is to be reported."""
        self.note(saved, usage)
        reported = self.unreported
        self._before, self._unreported, self._own = together([self._before, self._own]), {}, {}
        return reported
