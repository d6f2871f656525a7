"""Promotion of a SQLite file to PostgreSQL while its producers and workers continue.

The file records the key of every row that changes, and meanwhile all rows are copied in bounded steps. Rows that
changed are copied again until few are left. Counts, chain heads and histories are compared. Then the file is locked for
a moment: the last changes follow, all counts are compared again, and from then on the file refuses writes with the name
of the new database. A repeated call continues an interrupted promotion at any point. Until the file refuses writes, it
is the database, and a promotion can be backed out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import uuid4

from interlock.errors import Conflict
from interlock.storage import history_chain
from interlock.storage.postgres import migrate
from interlock.storage.postgres.store import PostgresStore
from interlock.storage.promotion.source import Begun, Snapshot, SourceFile
from interlock.storage.promotion.tables import Group, Plan, plan
from interlock.storage.promotion.target import COPYING, DONE, SWITCHING, Promotion, TargetDatabase, connected

STEP: Final = 1_000
MAX_PASSES: Final = 10
LARGE_BYTES: Final = 16 << 20
SMALL_BYTES: Final = 1 << 20

Report = Callable[[str, int], None]


class Promoted(NamedTuple):
    """The result: `promoted`, `already_promoted`, `checked` by a dry run, or `backed_out`."""

    state: str
    source: str
    target: str
    rows: Mapping[str, int]
    head: str | None = None


class Promoter:
    """Promotes one SQLite file to one PostgreSQL database; the address is that of the owner of the schema.

    `report` gets the phase and the number of rows so far. `at` is for tests.
    """

    def __init__(
        self,
        path: str,
        dsn: str,
        *,
        step: int = STEP,
        report: Report = lambda phase, rows: None,
        at: Callable[[str], None] = lambda point: None,
    ) -> None:
        self._path = path
        self._dsn = dsn
        self._name = without_password(dsn)
        self._step = step
        self._report = report
        self._at = at

    async def check(self) -> Promoted:
        """Check both sides and the history of the file, and count its rows, without changing anything."""
        file = SourceFile(self._path)
        try:
            async with connected(self._dsn) as target:
                begun = file.begun
                self._refuse_other(begun)
                if begun is not None and begun.promoted_at is not None:
                    return self._result("already_promoted", {})
                with file.snapshot() as snapshot:
                    if await target.has_schema():
                        whole = plan(file.tables(), await target.tables())
                        await migrate.check_schema(target.connection)
                        if self._own(begun, await target.promotion()) is None:
                            await target.refuse_unless_fit(whole)
                        counts = snapshot.counts(whole)
                    else:
                        counts = {name: snapshot.count(name) for name in file.tables()}
                    head = snapshot.head()
                return self._result("checked", counts, head)
        finally:
            file.close()

    async def back_out(self) -> Promoted:
        """Forget a promotion that was begun: the file is as before, and the target is empty."""
        file = SourceFile(self._path)
        try:
            async with connected(self._dsn) as target:
                await target.be_the_only_promoter()
                begun = file.begun
                self._refuse_other(begun)
                if begun is not None and begun.promoted_at is not None:
                    raise Conflict(
                        f"{self._path} was promoted: its jobs live in {begun.target} now, the promotion is irreversible"
                    )
                filling = await target.promotion() if await target.has_schema() else None
                if filling is not None and (filling.phase == DONE or filling.source != self._path):
                    raise Conflict(f"the target holds the rows of {filling.source}; they are not removed")
                file.back_out()
                self._at("source backed out")
                if filling is not None:
                    await target.clear(plan(file.tables(), await target.tables()))
                self._at("backed out")
                return self._result("backed_out", {})
        finally:
            file.close()

    async def promote(self) -> Promoted:
        """Promote the file, or finish an interrupted promotion."""
        file = SourceFile(self._path)
        try:
            begun = file.begun
            self._refuse_other(begun)
            if begun is None or begun.promoted_at is None:
                await migrate.migrate(self._dsn)
            async with connected(self._dsn) as target:
                await target.be_the_only_promoter()
                whole = plan(file.tables(), await target.tables())
                begun = file.begun
                if begun is not None and begun.promoted_at is not None:
                    return await self._finish(begun, target, whole)
                await self._begin(file, target, whole)
                await self._copy(file, target, whole)
                await self._catch_up(file, target, whole)
                await self._verify(file, target, whole)
                await self._catch_up(file, target, whole)
                return await self._switch(file, target, whole)
        finally:
            file.close()

    async def _begin(self, file: SourceFile, target: TargetDatabase, whole: Plan) -> None:
        begun, filling = file.begun, await target.promotion()
        if self._own(begun, filling) is None:
            await target.refuse_unless_fit(whole)
            id = begun.id if begun is not None else str(uuid4())
            await target.begin(id, self._path)
            self._at("target begun")
        else:
            id = str(filling and filling.id)
        if begun is None:
            file.begin(whole, id, self._name)
        self._at("begun")

    async def _copy(self, file: SourceFile, target: TargetDatabase, whole: Plan) -> None:
        """Copy all rows in order of their keys; those that change behind it are recorded by the file."""
        copied = 0
        done = await target.progress()
        for group in whole.groups.values():
            after: Sequence[Any] | None = done.get(group.name)
            step = self._step
            while True:
                with file.snapshot() as snapshot:
                    keys = snapshot.keys(group, after, step)
                    if not keys:
                        break
                    rows = _read(snapshot, group, keys)
                async with target.unguarded(group.tables):
                    await target.replace(group, keys, rows)
                    await target.note_progress(group.name, after := keys[-1])
                copied += len(keys)
                step = _next_step(step, rows, self._step)
                self._report("copied", copied)
                self._at(f"copied {group.name}")
        self._at("copied")

    async def _catch_up(self, file: SourceFile, target: TargetDatabase, whole: Plan) -> None:
        """Copy rows that changed again, until few are left."""
        for _ in range(MAX_PASSES):
            with file.snapshot() as snapshot:
                last = await self._copy_changes(snapshot, target, whole)
            file.forget_changes(last)
            self._at("caught up")
            if file.changes_left() <= self._step:
                return

    async def _copy_changes(self, snapshot: Snapshot, target: TargetDatabase, whole: Plan) -> int:
        """Copy the rows that changed, one transaction per step. Afterwards the target equals the snapshot."""
        last, changed = snapshot.changed()
        copied = 0
        for name, keys in changed.items():
            group = whole.groups[name]
            for start in range(0, len(keys), self._step):
                some = keys[start : start + self._step]
                async with target.unguarded(group.tables):
                    await target.replace(group, some, _read(snapshot, group, some))
                copied += len(some)
                self._report("copied again", copied)
                self._at("copied again")
        return last

    async def _verify(self, file: SourceFile, target: TargetDatabase, whole: Plan) -> None:
        """Compare the target with a snapshot, all counts and chain heads; then verify its histories and contents."""
        with file.snapshot() as snapshot:
            last = await self._copy_changes(snapshot, target, whole)
            async with target.unguarded(whole.tables):
                await _copy_whole(snapshot, target, whole)
            await _compare(snapshot, target, whole)
            head = snapshot.head()
        file.forget_changes(last)
        self._at("counted")
        store = await PostgresStore.open(self._dsn, size=1, promoting=True)
        try:
            if (there := await store.audit.head()) != head:
                raise Conflict(
                    f"the chain heads differ: {head} in the file, {there} in the target; nothing was switched"
                )
            for tenant in await store.audit.tenants():
                after: str | None = None
                checked = 0
                while True:
                    part = await store.audit.verify_part(tenant, after=after, jobs=history_chain.VERIFIED_BATCH_SIZE)
                    if part.first_bad is not None:
                        raise Conflict(
                            f"a history does not verify: {part.first_bad}; nothing was switched, "
                            "run interlock audit verify on the file"
                        )
                    checked += part.jobs
                    self._report("verified", checked)
                    if (after := part.next) is None:
                        break
        finally:
            await store.close()
        self._at("verified")

    async def _switch(self, file: SourceFile, target: TargetDatabase, whole: Plan) -> Promoted:
        """Copy the last changes while nobody writes, compare all counts, and make the file refuse writes."""
        with file.frozen() as frozen:
            self._at("frozen")
            _, changed = frozen.changed()
            async with target.unguarded(whole.tables):
                for name, keys in changed.items():
                    await target.replace(whole.groups[name], keys, _read(frozen, whole.groups[name], keys))
                await _copy_whole(frozen, target, whole)
                await target.finish(
                    int(frozen.value("SELECT value FROM epoch")), bytes(frozen.value("SELECT key FROM signing_key"))
                )
                await _verify_changed(target, changed.get("job", []))
                await target.set_phase(SWITCHING)
            counts = await _compare(frozen, target, whole)
            head = frozen.head()
            self._at("ready to switch")
            frozen.promote(self._name)
        self._at("switched")
        await target.set_phase(DONE)
        self._at("done")
        return self._result("promoted", counts, head)

    async def _finish(self, begun: Begun, target: TargetDatabase, whole: Plan) -> Promoted:
        """Open the target, if that did not happen after the file was switched."""
        filling = await target.promotion()
        if filling is None or filling.id != begun.id:
            raise Conflict(f"{self._path} was promoted to {begun.target}, but that database does not have its rows")
        state = "already_promoted" if filling.phase == DONE else "promoted"
        if filling.phase != DONE:
            await target.set_phase(DONE)
        return self._result(state, await target.counts(whole) if state == "promoted" else {})

    def _refuse_other(self, begun: Begun | None) -> None:
        if begun is not None and begun.target != self._name:
            raise Conflict(
                f"{self._path} is being promoted to {begun.target}: finish that with the same command, or --back-out"
                if begun.promoted_at is None
                else f"{self._path} was promoted to {begun.target} already"
            )

    def _own(self, begun: Begun | None, filling: Promotion | None) -> Promotion | None:
        """Return the promotion of the target if it is that of this file, and None if the target has none."""
        if filling is None:
            return None
        if filling.source != self._path or filling.phase not in (COPYING, SWITCHING):
            raise Conflict(f"the target was filled from {filling.source}; name an empty database")
        if begun is not None and begun.id != filling.id:
            raise Conflict(
                "the file and the target belong to different promotions, as after a restore of one of them: "
                "run the command with --back-out, then promote again"
            )
        return filling

    def _result(self, state: str, counts: Mapping[str, int], head: str | None = None) -> Promoted:
        return Promoted(state, self._path, self._name, {name: counts[name] for name in sorted(counts)}, head)


def without_password(dsn: str) -> str:
    """Return the URL of a database without its password."""
    parts = urlsplit(dsn)
    login, at, place = parts.netloc.rpartition("@")
    query = [(name, value) for name, value in parse_qsl(parts.query) if name not in ("password", "passfile")]
    options = f"?{urlencode(query)}" if query else ""
    return f"{parts.scheme}://{login.partition(':')[0]}{at}{place}{parts.path}{options}"


def _read(snapshot: Snapshot, group: Group, keys: Sequence[Sequence[Any]]) -> dict[str, list[tuple[Any, ...]]]:
    return {table.name: snapshot.rows(table, group.key, keys) for table in group.tables}


def _next_step(step: int, rows: Mapping[str, list[tuple[Any, ...]]], most: int) -> int:
    """Return a step that keeps the values of one step in memory, whatever their size."""
    size = sum(len(v) for some in rows.values() for row in some for v in row if isinstance(v, (str, bytes)))
    if size > LARGE_BYTES:
        return max(step // 4, 1)
    return min(step * 2, most) if size < SMALL_BYTES else step


async def _copy_whole(snapshot: Snapshot, target: TargetDatabase, whole: Plan) -> None:
    for table in whole.whole:
        await target.clear_table(table)
        for rows in snapshot.all_rows(table):
            await target.insert(table, rows)


async def _compare(snapshot: Snapshot, target: TargetDatabase, whole: Plan) -> dict[str, int]:
    """Raise unless both sides have the same number of rows in every table."""
    here, there = snapshot.counts(whole), await target.counts(whole)
    for name, count in here.items():
        if there[name] != count:
            raise Conflict(
                f"the copy differs: {count} rows for {name} in the file, {there[name]} in the target; nothing was "
                "switched. Something else writes to the target: stop it, --back-out, and promote again"
            )
    return here


async def _verify_changed(target: TargetDatabase, keys: Sequence[Sequence[Any]]) -> None:
    rows = await target.chains(keys)
    verdict = history_chain.verify(rows)
    if verdict.first_bad is not None:
        raise Conflict(f"a history does not verify: {verdict.first_bad}; nothing was switched")
