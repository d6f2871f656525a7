"""The SQLite side of a promotion: what changes while rows are copied, and the switch that ends the file's life."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from interlock.errors import DatabasePromoted
from interlock.storage.history_chain import Head
from interlock.storage.promotion.tables import Group, Plan, Source, Table
from interlock.storage.sqlite.connection import PROMOTED, Connection, wall_clock

CHANGES: Final = 5_000  # recorded changes that are read or deleted at once
_OPERATIONS: Final = ("insert", "update", "delete")


class Begun(NamedTuple):
    """A promotion that was begun: its ID and target, without a password, and when the file was promoted."""

    id: str
    target: str
    promoted_at: int | None


class SourceFile:
    """A SQLite file that is being promoted: a connection that reads snapshots, and one that writes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._reader = Connection(path, clock=wall_clock, readonly=True)
        self._writer = Connection(path, clock=wall_clock)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()

    @property
    def begun(self) -> Begun | None:
        rows = self._reader.rows("SELECT id, target, promoted_at FROM promotion")
        return Begun(*rows[0]) if rows else None

    def tables(self) -> dict[str, Source]:
        """Return the columns and keys of all tables."""
        found = {}
        for (name,) in self._reader.rows(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%' ORDER BY name"
        ):
            columns = self._reader.rows("SELECT name, pk FROM pragma_table_info(?)", (name,))
            key = [column for pk, column in sorted((pk, column) for column, pk in columns if pk)]
            found[name] = Source([column for column, _ in columns], key)
        return found

    def begin(self, plan: Plan, id: str, target: str) -> None:
        """Record every change of a row from now on."""
        with self._alone() as connection:
            connection.db.execute("DELETE FROM promotion_change")
            for group in plan.groups.values():
                for operation in _OPERATIONS:
                    key = {row: ", ".join(f"{row}.{column}" for column in group.key) for row in ("NEW", "OLD")}
                    row = "OLD" if operation == "delete" else "NEW"
                    connection.db.execute(
                        f"CREATE TRIGGER IF NOT EXISTS promotion_{operation}_{group.name} "
                        f"AFTER {operation} ON {group.name} BEGIN "
                        f"INSERT INTO promotion_change (name, key) VALUES ('{group.name}', json_array({key[row]})); END"
                    )
            connection.db.execute(
                "INSERT INTO promotion (only_row, id, target, begun_at) VALUES (1, ?, ?, ?)",
                (id, target, connection.now),
            )

    def back_out(self) -> None:
        """Forget the promotion: the file is as before."""
        with self._alone() as connection:
            _drop_triggers(connection)
            connection.db.execute("DELETE FROM promotion_change")
            connection.db.execute("DELETE FROM promotion")

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        """Provide the file as of one moment; others continue to write."""
        self._reader.db.execute("BEGIN")
        try:
            yield Snapshot(self._reader)
        finally:
            self._reader.db.execute("ROLLBACK")

    @contextmanager
    def frozen(self) -> Iterator[Frozen]:
        """Provide the file while nobody else can write; their calls wait."""
        with self._alone() as connection:
            yield Frozen(connection)

    def forget_changes(self, last: int) -> None:
        """Delete the records of changes that were copied, in bounded steps."""
        while True:
            with self._alone() as connection:
                connection.db.execute(
                    "DELETE FROM promotion_change WHERE no IN "
                    "(SELECT no FROM promotion_change WHERE no <= ? ORDER BY no LIMIT ?)",
                    (last, CHANGES),
                )
                if connection.db.changes() < CHANGES:
                    return

    def changes_left(self) -> int:
        ((count,),) = self._reader.rows("SELECT count(*) FROM promotion_change")
        return int(count)

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        self._writer.begin()
        try:
            yield self._writer
            self._writer.db.execute("COMMIT")
        except BaseException:
            if self._writer.db.in_transaction:
                self._writer.db.execute("ROLLBACK")
            raise


class Snapshot:
    """The rows of the file as of one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def keys(self, group: Group, after: Sequence[Any] | None, limit: int) -> list[list[Any]]:
        """Return the next keys of a group in order."""
        columns = ", ".join(group.key)
        beyond = f"WHERE ({columns}) > ({', '.join('?' * len(group.key))})" if after is not None else ""
        statement = f"SELECT {columns} FROM {group.name} {beyond} ORDER BY {columns} LIMIT ?"
        return [list(row) for row in self._connection.rows(statement, (*(after or ()), limit))]

    def rows(self, table: Table, key: Sequence[str], keys: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Return the rows of a table with these keys, as PostgreSQL takes them."""
        columns = ", ".join(f"{table.alias}.{column}" for column in key)
        members = ", ".join(f"value ->> {i}" for i in range(len(key)))
        condition = f"({columns}) IN (SELECT {members} FROM json_each(?))"
        return table.convert(self._connection.rows(table.query(condition), (json.dumps(keys),)))

    def all_rows(self, table: Table) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self._connection.db.execute(table.query())
        while rows := [row for row, _ in zip(cursor, range(CHANGES), strict=False)]:
            yield table.convert(rows)

    def counts(self, plan: Plan) -> dict[str, int]:
        return {table.name: int(self._connection.rows(table.counting)[0][0]) for table in plan.tables}

    def count(self, table: str) -> int:
        return int(self._connection.rows(f"SELECT count(*) FROM {table}")[0][0])

    def changed(self) -> tuple[int, Mapping[str, list[list[Any]]]]:
        """Return the number of the last recorded change, and the keys of the rows that changed up to it."""
        ((last,),) = self._connection.rows("SELECT coalesce(max(no), 0) FROM promotion_change")
        keys: defaultdict[str, list[list[Any]]] = defaultdict(list)
        for name, key in self._connection.rows(
            "SELECT DISTINCT name, key FROM promotion_change WHERE no <= ?", (last,)
        ):
            keys[name].append(json.loads(key))
        return int(last), keys

    def value(self, statement: str) -> Any:
        return self._connection.rows(statement)[0][0]

    def head(self) -> str:
        """Return the head over all chains, as `audit head` prints it."""
        whole = Head()
        for (tenant,) in self._connection.rows("SELECT tenant FROM tenant ORDER BY tenant"):
            whole.add(
                self._connection.db.execute("SELECT tenant, id, head FROM job WHERE tenant = ? ORDER BY id", (tenant,))
            )
            whole.add(
                self._connection.db.execute(
                    "SELECT tenant, 'audit_log', hash FROM audit_log WHERE tenant = ? ORDER BY seq DESC LIMIT 1",
                    (tenant,),
                )
            )
        return str(whole)


class Frozen(Snapshot):
    """The file while nobody else can write."""

    def promote(self, target: str) -> None:
        """Refuse every write from now on: by operations with an error that names the target, and by other tools."""
        connection = self._connection
        _drop_triggers(connection)
        connection.db.execute("DELETE FROM promotion_change")
        connection.db.execute("UPDATE promotion SET promoted_at = ?", (connection.now,))
        message = str(DatabasePromoted(target)).replace("'", "''")
        for (name,) in connection.rows(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ):
            for operation in _OPERATIONS:
                connection.db.execute(
                    f"CREATE TRIGGER promotion_{operation}_{name} BEFORE {operation} ON {name} "
                    f"BEGIN SELECT RAISE(ABORT, 'interlock: {message}'); END"
                )
        connection.db.pragma("user_version", PROMOTED)


def _drop_triggers(connection: Connection) -> None:
    for (name,) in connection.rows(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND name LIKE 'promotion\\_%' ESCAPE '\\'"
    ):
        connection.db.execute(f"DROP TRIGGER {name}")
