"""`interlock bench`: it measures, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path

import apsw

from tests.cli.test_remote import run
from tests.support.stores import migrated_file


def test_a_bench_prints_rates_and_leaves_nothing_in_the_database(tmp_path: Path) -> None:
    path = Path(migrated_file(tmp_path / "jobs.db"))
    done = run("bench", "--jobs", "150", "--json", "--database", f"sqlite:///{path}")
    assert done.code == 0, done
    found = json.loads(done.out)
    assert found["jobs"] == 150
    assert min(found[name] for name in ("enqueued_per_second", "drained_per_second", "start_ms_p50")) > 0
    assert found["start_ms_p50"] <= found["start_ms_p95"]
    db = apsw.Connection(str(path))
    assert [db.execute(f"SELECT count(*) FROM {table}").get for table in ("job", "job_history")] == [0, 0]
    db.close()
