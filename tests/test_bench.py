"""The benchmarks do not pass over what they could not measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.__main__ import main, markdown
from bench.peers.environments import PEERS
from bench.peers.plan import MEASUREMENTS, OURS, Rounds, comparisons
from bench.shards import work_through
from bench.verbs import PEERS as VERB_PEERS
from bench.verbs import RATES, table
from interlock.storage.contract import Store


@pytest.fixture
def broken_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An npm that has no network, and a cache in which nothing is installed yet."""
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho 'no route to the registry' >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.usefixtures("broken_npm")
def test_a_peer_that_cannot_be_installed_is_named_and_the_run_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # what was left half is not taken for whole
        assert main(["--quick", "--only", "graphile", "--out", str(tmp_path / "out")]) == 1
        given = capsys.readouterr().err
        assert "graphile-worker could not be installed" in given
        assert "no route to the registry" in given
    assert not (tmp_path / "out").exists()


def test_an_unknown_peer_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nobody"])
    assert (ended.value.code, "no peer has 'nobody'" in capsys.readouterr().err) == (2, True)


def test_every_peer_is_pinned_and_has_its_script_and_its_measurements() -> None:
    for peer in PEERS:
        assert peer.packages[0].lower().startswith(peer.name.lower())
        assert "==" in peer.packages[0] or "@" in peer.packages[0]
        assert (Path(__file__).parent.parent / "bench" / "peers" / "contestants" / peer.script).is_file()
        assert set(peer.measurements) <= set(MEASUREMENTS)


def test_a_ratio_is_one_of_the_same_round() -> None:
    rounds: Rounds = {
        (OURS, "postgres", "bulk"): [100.0, 300.0, 50.0],
        ("PgQueuer", "postgres", "bulk"): [200.0, 200.0, 50.0],
        (OURS, "sqlite", "bulk"): [400.0, 100.0, 500.0],
    }
    on_postgres, on_sqlite = comparisons(rounds)
    assert (on_postgres.ratios, on_postgres.ratio, on_postgres.met) == ([0.5, 1.5, 1.0], 1.0, True)
    assert (on_sqlite.ratios, on_sqlite.aim.other_engine) == ([2.0, 0.5, 10.0], "postgres")
    assert "| SQLite: enqueue, batches of 1000 | PgQueuer, PostgreSQL | 200 | 400 | 2.00 x |" in markdown(
        rounds, [on_postgres, on_sqlite]
    )


async def test_any_number_of_jobs_can_be_processed(store: Store) -> None:
    assert await work_through(store, ["one", "other"], 3) > 0
    assert sum(stats.succeeded for stats in await store.registry.stats("one")) == 3


def test_the_table_of_verbs_has_medians_and_ratios_and_no_figures_that_a_peer_lacks() -> None:
    delay = {"p50_ms": 2.0, "p95_ms": 9.0}
    run = dict.fromkeys(RATES, 300.0) | dict.fromkeys(("stream_latency", "wake_lateness"), delay)
    ours = [
        run | dict.fromkeys(RATES, rate) | {"wake_lateness_beside_sleepers": delay} for rate in (100.0, 600.0, 900.0)
    ]
    absurd = {"steps_per_second": 200.0, "wake_lateness_beside_sleepers": delay}
    lines = table("postgres", {"Interlock": ours, "DBOS": [run], "Absurd": [absurd]})
    assert lines[0] == "| PostgreSQL | steps | 600 /s | 300 /s | 2.0 times | 200 /s | 3.0 times |"
    assert lines[3] == "| PostgreSQL | chunks | 600 /s | 300 /s | 2.0 times | - | - |"
    assert lines[-2] == "| PostgreSQL | wake lateness | p50 2 ms, p95 9 ms | p50 2 ms, p95 9 ms | | - | |"
    assert (
        lines[-1] == "| PostgreSQL | wake lateness beside sleepers | p50 2 ms, p95 9 ms | - | | p50 2 ms, p95 9 ms | |"
    )
    assert table("sqlite", {"Interlock": ours, "DBOS": [run]})[0].endswith("| 2.0 times | - | - |")


def test_each_peer_of_the_verbs_is_pinned_and_has_its_script() -> None:
    for peer in {peer for peers in VERB_PEERS.values() for peer in peers}:
        assert all("==" in package for package in peer.packages)
        assert (Path(__file__).parent.parent / "bench" / "peers" / "contestants" / peer.script).is_file()
