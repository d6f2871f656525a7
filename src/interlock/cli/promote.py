"""`interlock promote`: from a SQLite file to PostgreSQL while jobs continue."""

from __future__ import annotations

from typing import Annotated, Any, Final

from cyclopts import Parameter

from interlock import assemble
from interlock.cli import output
from interlock.cli.runner import COMMON, Common, guard
from interlock.errors import Invalid

_LINES: Final = {
    "promoted": "promoted {source} to {target}: {jobs}, {rows} in all; counts and histories match. The file takes no "
    "more writes: start servers and workers on the new database",
    "already_promoted": "{source} was promoted to {target} already; nothing was done",
    "checked": "{source} can be promoted to {target}: {jobs}, {rows} in all; nothing was changed",
    "backed_out": "backed out: {source} is in use as before, and {target} is empty",
}


def promote(
    source: Annotated[str, Parameter(help="sqlite:///PATH")],
    target: Annotated[str, Parameter(help="postgresql://…, as the owner of the schema")],
    *,
    dry_run: Annotated[bool, Parameter(negative=(), help="only check both databases and count the rows")] = False,
    back_out: Annotated[
        bool, Parameter(negative=(), help="undo a promotion that was begun but has not switched")
    ] = False,
    common: Common = COMMON,
) -> None:
    """Move a SQLite database with all tenants to PostgreSQL while its jobs continue. Call it again to resume.

    Everything is copied and compared first. Then writes wait for a moment, and the file refuses them from then on with
    an error that names the new database. The target must be empty; its schema is created if necessary.
    """

    async def command() -> dict[str, Any]:
        if common.database or common.tenant:
            raise Invalid("promote takes both databases as arguments and moves all tenants", pointer="/source")
        if dry_run and back_out:
            raise Invalid("--dry-run and --back-out are mutually exclusive", pointer="/dry_run")
        with output.progress_of_phases() as report:
            promoter = assemble.promoter(source, target, report)
            if dry_run:
                done = await promoter.check()
            elif back_out:
                done = await promoter.back_out()
            else:
                done = await promoter.promote()
        return {**done._asdict(), "rows": dict(done.rows), "artifacts": assemble.artifacts_beside(source)}

    done = guard(common, command)
    counts = {
        "jobs": output.counted(done["rows"].get("job", 0), "job"),
        "rows": output.counted(sum(done["rows"].values()), "row"),
    }
    common.show(done, _LINES[done["state"]].format(source=done["source"], target=done["target"], **counts))
    if not common.json and done["state"] == "promoted" and done["artifacts"] is not None:
        output.print_line(
            f"the files of artifacts stay in {done['artifacts']}: set artifacts to it, or to the place you copy them to"
        )
