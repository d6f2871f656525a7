"""What operators watch: readiness, and the numbers for a scraper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from interlock.api.metrics import Metrics, TenantState
from interlock.domain.principal import ROLES, Principal, user
from interlock.domain.registry import QueueStats
from interlock.domain.retry import SECOND
from interlock.domain.timestamps import when
from interlock.domain.webhook import DeliveryFilter, DeliveryResult, DeliveryStatus, Outcome
from interlock.engine.metrics import MAX_TYPES
from interlock.storage.contract import Fitness
from interlock.wire import SubscriptionRequest
from tests.api.rig import Api, problem

METRICS = Path(__file__).parents[2] / "docs/reference/metrics-and-logs.md"


def value(text: str, series: str) -> float:
    """The value of one series of a scrape."""
    (found,) = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(f"{series} ")]
    return float(found)


async def test_a_service_with_a_current_schema_is_ready(api: Api) -> None:
    assert (await api.get("/readyz")).json() == {"status": "ok", "durability": "full"}


@pytest.mark.parametrize("engine", ["sqlite"])
async def test_an_old_schema_is_not_ready_and_relaxed_durability_is_reported(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def old() -> Fitness:
        return Fitness("0099_later", True)

    async def relaxed() -> Fitness:
        return Fitness(None, False)

    monkeypatch.setattr(api.engine.store, "fitness", old, raising=False)
    problem(await api.get("/readyz"), 503, "unavailable")
    monkeypatch.setattr(api.engine.store, "fitness", relaxed, raising=False)
    assert (await api.get("/readyz")).json() == {"status": "ok", "durability": "relaxed"}


async def test_a_lease_counts_as_expired_whichever_process_finds_it(api: Api) -> None:
    await api.enqueue()
    await api.claim()
    assert value((await api.get("/metrics")).text, "interlock_leases_expired_total") == 0
    api.clock.advance(61)
    await api.claim()
    text = (await api.get("/metrics")).text
    assert value(text, "interlock_leases_expired_total") == 1
    assert value(text, 'interlock_job_transitions_total{status="retry",verb="expire"}') == 1
    api.clock.advance(61)
    await api.engine.maintenance.sweep()
    assert value((await api.get("/metrics")).text, "interlock_leases_expired_total") == 2


async def test_request_durations_are_a_histogram(api: Api) -> None:
    for _ in range(3):
        await api.get("/v1/me")
    text = (await api.get("/metrics")).text
    series = 'interlock_http_request_seconds_bucket{le="%s",route="/v1/me"}'
    counts = [value(text, series % bound) for bound in ("0.001", "0.0025", "0.005", "1.0", "60.0", "+Inf")]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert value(text, 'interlock_http_request_seconds_count{route="/v1/me"}') == 3
    assert value(text, 'interlock_http_request_seconds_sum{route="/v1/me"}') > 0


async def test_metrics_count_the_outcomes_of_jobs(api: Api) -> None:
    for _ in range(4):
        await api.enqueue()
    await api.enqueue(type="later", delay_seconds=60)
    key = {"type": "work", "idempotency_key": "k"}
    await api.post("/v1/jobs", key)
    await api.post("/v1/jobs", key)
    done, failed, _lost = await api.claim(limit=3)
    await api.post(f"/v1/jobs/{done['id']}/complete", {"fence": done["lease"]["fence"]})
    body = {"fence": failed["lease"]["fence"], "error": {"message": "no"}, "retryable": False}
    await api.post(f"/v1/jobs/{failed['id']}/fail", body)
    await api.post(f"/v1/jobs/{failed['id']}/complete", {"fence": failed["lease"]["fence"]})
    api.clock.advance(61)
    await api.engine.maintenance.sweep()
    text = (await api.get("/metrics")).text
    assert value(text, "interlock_jobs_enqueued_total") == 6
    assert value(text, "interlock_jobs_claimed_total") == 3
    assert value(text, 'interlock_job_transitions_total{status="succeeded",verb="complete"}') == 1
    assert value(text, 'interlock_job_transitions_total{status="failed",verb="fail"}') == 1
    assert value(text, 'interlock_job_transitions_total{status="retry",verb="expire"}') == 1
    assert value(text, 'interlock_commands_rejected_total{code="already_finished",verb="complete"}') == 1
    assert value(text, 'interlock_queue_jobs{location="ready",type="later"}') == 1
    assert value(text, 'interlock_queue_jobs{location="ready",type="work"}') == 3
    assert value(text, 'interlock_queue_oldest_ready_seconds{type="work"}') == 61
    assert value(text, 'interlock_batched_calls_total{verb="enqueue"}') == 7
    assert value(text, 'interlock_batches_total{verb="enqueue"}') >= 1


async def test_waits_and_runs_of_jobs_are_histograms(api: Api) -> None:
    for _ in range(3):
        await api.enqueue()
    api.clock.advance(20)
    done, failed, _running = await api.claim(limit=3)
    for _ in range(2):  # a repeated call is not a second run
        await api.post(f"/v1/jobs/{done['id']}/complete", {"fence": done["lease"]["fence"]})
    await api.post(f"/v1/jobs/{failed['id']}/fail", {"fence": failed["lease"]["fence"], "error": {"message": "no"}})
    text = (await api.get("/metrics")).text
    waits = 'interlock_job_wait_seconds_bucket{le="%s",type="work"}'
    assert [value(text, waits % bound) for bound in ("10.0", "30.0", "+Inf")] == [0, 3, 3]
    assert value(text, 'interlock_job_wait_seconds_sum{type="work"}') == pytest.approx(60, abs=1)
    assert value(text, 'interlock_job_run_seconds_count{status="succeeded",type="work"}') == 1
    assert value(text, 'interlock_job_run_seconds_count{status="retry",type="work"}') == 1


async def test_metrics_show_what_limits_use_and_lack(api: Api) -> None:
    rate = {"units": {"tokens": 10}, "per_seconds": 1000}
    api.ok(await api.put("/v1/limits/provider", {"concurrency": 2, "rate": rate}))
    api.ok(await api.put("/v1/limits/customer", {"concurrency": 1, "keyed": True}))
    named = [{"name": "provider", "cost": {"tokens": 4}}, {"name": "customer", "key": "acme"}]
    for _ in range(3):
        await api.enqueue(limits=named)
    await api.claim(limit=3)
    until = when(await api.engine.queries.now() + 60 * SECOND)
    api.ok(await api.post("/v1/limits/provider/hold", {"until": until}))
    text = (await api.get("/metrics")).text
    assert value(text, 'interlock_limit_running{limit="provider"}') == 1
    assert value(text, 'interlock_limit_running{limit="customer"}') == 1
    assert value(text, 'interlock_limit_waiting{limit="customer"}') == 2
    assert value(text, 'interlock_limit_available{limit="provider",unit="tokens"}') == 6
    assert value(text, 'interlock_limit_available{limit="provider",unit="concurrency"}') == 1
    assert value(text, 'interlock_limit_held{limit="provider"}') == 1
    assert value(text, 'interlock_limit_held{limit="customer"}') == 0


async def test_metrics_show_capacity_and_utilization_of_limits(api: Api) -> None:
    rate = {"units": {"tokens": 10}, "per_seconds": 1000, "burst": {"tokens": 20}}
    api.ok(await api.put("/v1/limits/provider", {"concurrency": 2, "rate": rate}))
    api.ok(await api.put("/v1/limits/customer", {"concurrency": 1, "keyed": True}))
    await api.enqueue(limits=[{"name": "provider", "cost": {"tokens": 15}}])
    await api.claim()
    text = (await api.get("/metrics")).text
    assert value(text, 'interlock_limit_capacity{limit="provider",unit="tokens"}') == 20
    assert value(text, 'interlock_limit_capacity{limit="provider",unit="concurrency"}') == 2
    assert value(text, 'interlock_limit_utilization_ratio{limit="provider"}') == pytest.approx(0.75, abs=0.01)
    assert 'interlock_limit_utilization_ratio{limit="customer"}' not in text


async def test_metrics_show_usage_and_budgets(api: Api) -> None:
    api.ok(await api.put("/v1/budgets/team", {"amount": {"usd": 10}}))
    await api.enqueue(budgets=["team"])
    (job,) = await api.claim()
    report = {"fence": job["lease"]["fence"], "usage": {"usd": 2.5, "tokens": 100}}
    for _ in range(2):  # a repeated call reports nothing new
        api.ok(await api.post(f"/v1/jobs/{job['id']}/complete", report))
    await api.enqueue(budgets=["team"])
    text = (await api.get("/metrics")).text
    assert value(text, 'interlock_usage_total{unit="usd"}') == 2.5
    assert value(text, 'interlock_usage_total{unit="tokens"}') == 100
    assert value(text, 'interlock_budget_amount{budget="team",unit="usd"}') == 10
    assert value(text, 'interlock_budget_spent{budget="team",unit="usd"}') == 2.5
    assert value(text, 'interlock_budget_reserved{budget="team",unit="usd"}') == 0
    assert value(text, 'interlock_budget_waiting{budget="team"}') == 1


async def test_metrics_follow_what_needs_attention(api: Api) -> None:
    await api.enqueue(max_attempts=1)
    (job,) = await api.claim()
    await api.post(f"/v1/jobs/{job['id']}/fail", {"fence": job["lease"]["fence"], "error": {"message": "no"}})
    failures = 'interlock_jobs_needing_attention{need="failure"}'
    assert value((await api.get("/metrics")).text, failures) == 1
    api.ok(await api.post(f"/v1/jobs/{job['id']}/acknowledge", {}))
    assert value((await api.get("/metrics")).text, failures) == 0


async def test_rejected_claims_are_counted_by_error_code(guarded: Api) -> None:
    operator, worker = await guarded.as_role("operate"), await guarded.as_role("work")
    await operator.post("/v1/claims", {"types": ["t"]})
    await worker.post("/v1/claims", {"types": ["t"], "limit": 0})
    text = (await operator.get("/metrics")).text
    assert value(text, 'interlock_claims_rejected_total{code="forbidden"}') == 1
    assert value(text, 'interlock_claims_rejected_total{code="invalid"}') == 1


async def test_metrics_count_the_outcomes_of_deliveries(api: Api) -> None:
    who = Principal(api.tenant, user("test"), ROLES)
    wanted = SubscriptionRequest(url="https://example.com/hook", events=["job.cancelled"])
    subscription = (await api.engine.webhooks.subscribe(who, wanted)).subscription
    job = await api.enqueue()
    await api.post(f"/v1/jobs/{job['id']}/cancel")
    outbox = api.engine.store.outbox
    (channel,) = await outbox.due_channels(10)
    (taken,) = await outbox.take(
        api.tenant, [(channel.channel, 1)], lease_seconds=30, fresh_secret="whsec_bm90IHVzZWQgaGVyZQ=="
    )
    settled = DeliveryResult(taken.id, taken.grab, Outcome(DeliveryStatus.DELIVERED), 200, None)
    assert await outbox.settle(api.tenant, settled)
    assert not await outbox.settle(api.tenant, settled)
    assert value((await api.get("/metrics")).text, 'interlock_webhook_attempts_total{status="delivered"}') == 1
    (delivery,) = await outbox.deliveries(api.tenant, DeliveryFilter(subscription_id=subscription.id))
    assert delivery.status == "delivered"


async def test_a_scraper_sees_only_the_queues_of_its_tenant(guarded: Api) -> None:
    ours, theirs = await guarded.as_role("operate", "produce"), await guarded.as_role("produce", tenant="others")
    await ours.enqueue(type="ours")
    await theirs.enqueue(type="theirs")
    text = (await ours.get("/metrics")).text
    assert 'type="ours"' in text
    assert "theirs" not in text


def test_the_number_of_labels_is_bounded_for_any_number_of_types() -> None:
    queues = [QueueStats(f"t{i:03}", ready=1000 - i) for i in range(MAX_TYPES + 5)]
    text = Metrics.of_tenant(TenantState(queues)).decode()
    assert text.count('location="ready"') == MAX_TYPES + 1
    assert value(text, 'interlock_queue_jobs{location="ready",type=""}') == sum(
        1000 - i for i in range(MAX_TYPES, MAX_TYPES + 5)
    )


async def test_every_metric_has_a_help_and_a_type_before_its_first_sample(api: Api) -> None:
    documented = set(re.findall(r"^\| `(interlock_\w+)` \|", METRICS.read_text(), re.M))
    for text in ((await api.get("/metrics")).text, (await api.get("/metrics")).text):
        helped, typed = (set(re.findall(rf"^# {word} (\w+) \S", text, re.M)) for word in ("HELP", "TYPE"))
        assert helped == typed == documented
        samples = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"^(interlock_\w+)", text, re.M)}
        assert samples <= typed
