"""`interlock audit`: verify, head."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import App, Parameter

from interlock.cli import output
from interlock.cli.session import BAD_AUDIT, Common, run
from interlock.domain.principal import Principal
from interlock.engine.engine import Engine
from interlock.storage.contract import Verdict

app = App(name="audit", help="Prove what happened.")
NOTHING = Common()


@app.command
def verify(
    *,
    all_tenants: Annotated[bool, Parameter(negative=(), help="not only the one tenant")] = False,
    common: Common = NOTHING,
) -> None:
    """Recompute every chain of history and name the first row that does not fit. Exit code 7 if there is one."""

    async def command(engine: Engine, who: Principal) -> Verdict:
        return await engine.reads.verify(None if all_tenants else who.tenant)

    verdict = run(common, command)
    if common.json:
        output.as_json({"ok": verdict.first_bad is None, **verdict._asdict()})
    else:
        output.say(f"{verdict.jobs} jobs, {verdict.rows} rows: " + (verdict.first_bad or "every chain fits"))
    if verdict.first_bad is not None:
        sys.exit(BAD_AUDIT)


@app.command
def head(*, common: Common = NOTHING) -> None:
    """Print one hash over the ends of all chains, to be kept elsewhere."""

    async def command(engine: Engine, who: Principal) -> str:
        return await engine.reads.head()

    value = run(common, command)
    if common.json:
        output.as_json({"head": value})
    else:
        output.say(value)
