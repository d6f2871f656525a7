"""The parts of the campaign hold in a short form, and their checkers catch what they look for."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from campaign import acknowledged, crash_sweep, fuzz, histories, power_loss, simulation, soak
from campaign.__main__ import main
from campaign.acknowledged import Book
from campaign.crash_sweep import Shape, judge
from campaign.failover import distribution, longest_gap
from campaign.histories import History, Made, Round, claim, explained, order, send
from campaign.load import payload_of, result_of
from campaign.power_loss import Image, Sync, Truncate, Write
from campaign.results import Outcome, Plan, write_report
from campaign.soak import Sample
from campaign.verbs import VERBS, Act
from interlock.domain.approval import ApprovalStatus
from interlock.domain.decide import CompleteJob, ReleaseJob
from interlock.domain.job import Job, NewJob, Receipt
from interlock.domain.lifecycle import Status
from interlock.domain.message import AwaitMessage
from tests.contract.builders import TenantQueue, new_job
from tests.support.postgres import Postgres
from tests.support.stores import SECOND, START

JOB = "00000001-0000-7000-8000-000000000001"


def plan(size: int, seed: int = 7) -> Plan:
    return Plan(seed, size, 60.0, lambda _: None)


class LyingImage(Image):
    """A disk that answers a sync and does nothing."""

    def add(self, entry: Write | Truncate | Sync) -> None:
        if not isinstance(entry, Sync):
            super().add(entry)


def test_images_of_a_power_loss_keep_what_was_acknowledged() -> None:
    outcome = power_loss.run(plan(20))
    assert (outcome.done, outcome.violations) == (20, [])
    assert outcome.numbers["jobs found in images"] > 0


def test_a_disk_that_ignores_syncs_is_caught() -> None:
    outcome = power_loss.run(plan(20), LyingImage)
    assert outcome.verdict == "violated"
    assert any("is lost" in text for text in outcome.violations), outcome.violations


def test_a_crash_keeps_what_was_synced_and_tears_the_rest() -> None:
    image = Image({"queue.db": b"old."})
    image.add(Write("queue.db", 0, b"new."))
    image.add(Sync("queue.db"))
    image.add(Write("queue.db", 4, b"x" * 2000))
    found = {bytes(image.crash(random.Random(seed))["queue.db"]) for seed in range(40)}
    assert all(data.startswith(b"new.") for data in found)
    assert {b"new.", b"new." + b"x" * 2000} < found


async def test_histories_of_both_engines_are_explained(postgres: Postgres) -> None:
    outcome = await histories.run_on(postgres, plan(2 * histories.TOGETHER))
    assert (outcome.done, outcome.violations) == (2 * histories.TOGETHER, [])


def lease(fence: int = 1, version: int = 2) -> list[tuple[str, int, int, int]]:
    return [(JOB, fence, version, 1)]


def finished(version: int = 3) -> Receipt:
    return Receipt(JOB, 1, Status.SUCCEEDED, 1, version, None, START + 2 * SECOND)


def told(*rounds: list[Made], engine: str = "postgres") -> History:
    numbered = [Round(START + number * SECOND, calls) for number, calls in enumerate(rounds, 1)]
    return History(engine, NewJob(JOB, "t"), 1, START, numbered)


def claimed(result: Any, began: int = 0, ended: int = 9, worker: str = "w1") -> Made:
    return Made(claim(worker, "t"), began, ended, result)


def completed(result: Any) -> Made:
    return Made(order("complete", CompleteJob(JOB, 1, "w1", '"done"')), 10, 19, result)


def released_for_a_message(*, due: bool) -> Made:
    now = START + 2 * SECOND
    receipt = Receipt(JOB, 1, Status.QUEUED, 1, 3, now if due else now + 10 * 365 * 86_400 * SECOND, None)
    return Made(order("wait for a message", ReleaseJob(JOB, 1, "w1", message=AwaitMessage("go"))), 10, 19, receipt)


def sent(result: Any, began: int = 11) -> Made:
    return Made(send(JOB, "m1", "go", "1"), began, began + 1, result)


def test_a_true_history_is_explained() -> None:
    assert explained(told([claimed(lease()), claimed([], 1, 8, "w2")], [completed(finished())])) is None
    for due in (True, False):
        message_and_wait = [released_for_a_message(due=due), sent((1, True))]
        woken = claimed([(JOB, 2, 4 if due else 5, 1)], 30, 31)
        assert explained(told([claimed(lease())], message_and_wait, [woken])) is None


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param([[claimed(lease()), claimed(lease(), 1, 8, "w2")]], id="two claims got the same lease"),
        pytest.param([[claimed(lease(fence=2))]], id="a fence was left out"),
        pytest.param([[claimed(lease())], [completed(finished(version=4))]], id="a receipt has a wrong version"),
        pytest.param([[claimed(lease())], [completed("not_running")]], id="the lease did not count"),
        pytest.param([[claimed([])]], id="an undisturbed claim got nothing"),
        pytest.param([[sent((1, True))], [sent((2, True), 20)]], id="a repeated message was stored twice"),
        pytest.param(
            [[claimed(lease())], [released_for_a_message(due=False), sent((1, True))], [claimed([], 30, 31)]],
            id="a message did not end the wait for it",
        ),
        pytest.param(
            [[claimed([], 0, 1), claimed(lease(), 2, 3, "w2")]], id="a claim got nothing before any other call"
        ),
    ],
)
def test_a_false_history_is_not_explained(rounds: list[list[Made]]) -> None:
    assert "no order explains" in str(explained(told(*rounds)))


def test_only_on_postgres_may_a_claim_pass_over_a_locked_job() -> None:
    empty = [claimed([]), claimed([], 1, 8, "w2")]
    assert explained(told(empty)) is None
    assert explained(told(empty, engine="sqlite")) is not None


def test_the_simulation_holds_on_both_engines(postgres: Postgres) -> None:
    outcome = simulation.run_on(postgres, plan(1), scripts=2)
    assert outcome.violations == []
    assert all(outcome.numbers["steps"].values())


def test_acknowledged_work_survives_faults() -> None:
    outcome = acknowledged.run(plan(600))
    assert outcome.violations == []
    for numbers in outcome.numbers.values():
        assert numbers["jobs acknowledged"] >= 300
        assert numbers["faults"]["all"] > 0
        assert numbers["completions acknowledged"] > 0


def read(*lines: list[Any]) -> Book:
    book = Book()
    for line in [["try", ["k"]], ["enqueued", [["k", JOB]]], ["claimed", "c1", [[JOB, 1]]], *lines]:
        book.read(json.dumps(line))
    return book


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (["enqueued", [["k", "other"]]], "one idempotency key got two jobs"),
        (["enqueued", [["other", JOB]]], "one job was acknowledged under two idempotency keys"),
        (["claimed", "c2", [[JOB, 1]]], "one lease was granted twice"),
        (["finished", [[JOB, 2, "succeeded"]]], "one job was completed twice"),
        (["decided", "a", "deny"], "one approval was decided twice"),
        (["refused", "invalid"], "a legal call was rejected with invalid"),
    ],
)
def test_a_log_that_contradicts_itself_is_caught(line: list[Any], fault: str) -> None:
    told = ["finished", [[JOB, 1, "succeeded"]]], ["decided", "a", "approve"]
    assert read(*told).violations == []
    (found,) = read(*told, line).violations
    assert found.startswith(fault)


def ended_job(**changed: Any) -> Job:
    facts: dict[str, Any] = dict.fromkeys(Job._fields) | {
        "id": JOB, "status": Status.SUCCEEDED, "fence": 1, "idempotency_key": "k", "payload": json.dumps(payload_of("k")),
        "result": json.dumps(result_of(JOB, 1)),
    }  # fmt: skip
    return Job(**facts | changed)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"idempotency_key": "unknown"}, "was never enqueued"),
        ({"id": "another"}, "has two jobs"),
        ({"payload": "{}"}, "has another payload"),
        ({"status": Status.FAILED}, "ended as failed"),
        ({"result": "{}"}, "has another result"),
        ({"fence": 2, "result": json.dumps(result_of(JOB, 2))}, "the acknowledged completion was replaced"),
    ],
)
def test_a_database_that_contradicts_the_log_is_caught(changed: dict[str, Any], fault: str) -> None:
    true, false = (read(["finished", [[JOB, 1, "succeeded"]]]) for _ in range(2))
    true.check(ended_job(), set())
    false.check(ended_job(**changed), set())
    assert true.violations == []
    assert any(fault in text for text in false.violations), false.violations


def test_lost_jobs_and_changed_decisions_are_caught() -> None:
    book = read(["decided", "a", "approve"], ["decided", "b", "deny"])
    book.check_missing(set())
    book.check_decisions({"a": ApprovalStatus.DENIED, "b": ApprovalStatus.DENIED})
    assert book.violations == [f"acknowledged and lost: {JOB}", "approval a: approve was acknowledged, it is denied"]


def test_an_unknown_part_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["power-los", "--out", str(tmp_path)])
    assert ended.value.code == 2
    assert (
        "unknown part 'power-los': expected one of acknowledged, crash-sweep, failover, fuzz, power-loss, histories, soak, simulation"
        in capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_the_report_names_what_was_cut_off_and_what_was_violated(tmp_path: Path) -> None:
    outcomes = [
        Outcome("power loss", "images", 7, 100, done=100),
        Outcome("histories", "histories", 7, 100, done=60),
        Outcome("simulation", "steps", 7, 100, done=100, violations=["sqlite, seed 7: lost"]),
    ]
    text = write_report(outcomes, tmp_path).read_text()
    assert "| power loss | 100 images | 100 | 7 | 0 | held |" in text
    assert "| histories | 60 histories | 100 | 7 | 0 | held, but cut off by its time limit |" in text
    assert "- **violation**: sqlite, seed 7: lost" in text


async def half(queue: TenantQueue, many: int) -> Act:
    """A verb that a crash can divide."""
    first, second = new_job(), new_job()

    async def act(at: TenantQueue) -> None:
        await at.store.enqueue(at.tenant, [first])
        await at.store.enqueue(at.tenant, [second])

    return act


def test_a_crash_at_every_statement_leaves_a_verb_whole_or_undone(postgres: Postgres) -> None:
    chosen = {name: VERBS[name] for name in ("enqueue", "complete", "decide")}
    outcome = crash_sweep.run_on(postgres, plan(150), chosen)
    assert outcome.violations == []
    assert all(outcome.numbers["crashes"].values())


def test_a_verb_in_two_transactions_is_caught_by_the_crash_sweep(postgres: Postgres) -> None:
    outcome = crash_sweep.run_on(postgres, plan(200), {"half": half})
    halves = [text for text in outcome.violations if "a part of it is there" in text]
    assert {text.partition(",")[0] for text in halves} == {"sqlite", "postgres"}, outcome.violations


def test_an_answered_call_that_is_gone_is_caught_by_the_crash_sweep() -> None:
    before, after = Shape((("job", 0),), ()), Shape((("job", 1),), (("queued", 1, 0, 1),))
    assert judge(after, before, after, answered=True) is None
    assert judge(before, before, after, answered=False) is None
    assert "it was answered and is not there" in str(judge(before, before, after, answered=True))
    assert "a part of it is there" in str(judge(Shape((("job", 1),), ()), before, after, answered=False))


async def test_hostile_requests_and_inputs_break_nothing(postgres: Postgres) -> None:
    outcome = await fuzz.run_on(postgres, plan(320), decoded=2000)
    assert outcome.violations == []
    for statuses in outcome.numbers["answers"].values():
        assert {200, 401, 403, 422} <= statuses.keys()


def test_the_judge_of_answers_finds_server_errors_and_foreign_data() -> None:
    assert fuzz.judge(200, '{"of": "secret-of-a"}', ["secret-of-b"]) is None
    assert fuzz.judge(404, "not found", ["secret-of-b"]) is None
    assert fuzz.judge(500, "", []) == "answer 500"
    assert fuzz.judge(200, '{"of": "secret-of-b"}', ["secret-of-b"]) == "an answer with data of another tenant"


def test_a_decoder_that_raises_anything_else_is_caught() -> None:
    assert fuzz.try_decoder(lambda data: json.loads(b"{}"), b"") is None
    assert "JSONDecodeError" in str(fuzz.try_decoder(json.loads, b"{"))
    inputs = {fuzz.mutated([b'{"a": 1}', b"limit=3"], random.Random(seed)) for seed in range(50)}
    assert len(inputs) > 40


def sample(number: int, **changed: float) -> Sample:
    return Sample(**{"seconds": float(number), "memory_mib": 100.0, "files": 50.0, "bytes_per_job": 9000.0,
                     "median_ms": 5.0, "slowest_ms": 30.0} | changed)  # fmt: skip


def test_a_soak_that_stays_flat_is_accepted_and_one_that_grows_is_not() -> None:
    assert soak.judge([sample(n) for n in range(40)]) == []
    assert soak.judge([sample(n, memory_mib=500.0 - n) for n in range(40)]) == []
    (leak,) = soak.judge([sample(n, memory_mib=100.0 + 10 * n) for n in range(40)])
    assert leak.startswith("memory_mib has grown from")
    (files,) = soak.judge([sample(n, files=float(n)) for n in range(80)])
    assert files.startswith("files has grown")


def test_samples_of_a_process_are_measured(tmp_path: Path) -> None:
    assert 1 < soak.memory_mib(os.getpid()) < 100_000
    assert soak.open_files(os.getpid()) >= 3
    names = soak.draw({"sqlite": [sample(1), sample(2)], "postgres": [sample(1)]}, tmp_path)
    assert all("<polyline" in (tmp_path / name).read_text() for name in names)


def test_the_longest_gap_lies_between_two_answers() -> None:
    assert longest_gap([1.0, 2.0, 7.5, 8.0], 1.5, 9.0) == 5.5
    assert longest_gap([], 3.0, 5.0) == 2.0
    assert distribution([3.0, 1.0, 2.0]) == {"least": 1.0, "median": 2.0, "p90": 3.0, "most": 3.0}
    assert distribution([]) == {}
