"""`interlock restored`: void all leases after the database was restored from a backup."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from interlock.cli import output
from interlock.cli.runner import REFUSED, Common, run
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.engine.restore import Restored

NOTHING = Common()
QUESTION = "end the leases of all running jobs of all tenants, as after a restore? [y/N] "


def restored(
    *,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative=(), help="skip the confirmation prompt")] = False,
    common: Common = NOTHING,
) -> None:
    """Void every lease from before a restore. Run it after a backup was restored, before servers and workers start.

    Workers from before the restore are rejected, and their jobs are retried with the next attempt number. On
    PostgreSQL, connect as the owner of the schema.
    """
    if sys.stdin.isatty() and not yes and input(QUESTION).strip().lower() not in ("y", "yes"):
        print("interlock: cancelled, nothing was changed", file=sys.stderr)
        sys.exit(REFUSED)

    async def command(engine: Engine, who: Principal) -> Restored:
        return await engine.restore.restored(who)

    done = run(common, command)
    if common.json:
        output.print_json(done._asdict())
    else:
        were = "was" if done.revoked == 1 else "were"
        output.print_line(f"epoch {done.epoch}: {output.counted(done.revoked, 'lease')} from before {were} ended")
