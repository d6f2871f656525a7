"""The same script with approvals, votes, links and edits on both engines: equal results and equal bytes of history."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from interlock.domain.approval import (
    Approval,
    ApprovalFilter,
    ApprovalStatus,
    CastVote,
    CreateApprovalLink,
    Decision,
    OnDeny,
    RequestApproval,
)
from interlock.domain.decide import ExpireLease
from interlock.domain.edit import EditJob
from interlock.domain.job import Checkpoint
from interlock.storage.contract import Store
from tests.model.rig import Rig, examples, open_rig
from tests.model.test_differential import (
    UNKNOWN_LEASE,
    StorePair,
    json_texts,
    lasting,
    reasons,
    some_words,
    text,
    words,
)
from tests.support.postgres import Postgres
from tests.support.stores import START, ManualClock

VOTERS: Final = ("user:ann", "user:bob", "bearer:user:ann", "worker:plain")

_numbers = itertools.count(1)
numbers = st.integers(0, 30)
maybe_json = st.one_of(st.none(), json_texts)
questions = st.fixed_dictionaries(
    {"prompt": text},
    optional={
        "details": json_texts, "risk": words, "schema": json_texts, "required": st.integers(1, 3),
        "on_deny": st.sampled_from(OnDeny), "expires_in_seconds": lasting, "opened_by": st.sampled_from(VOTERS),
    },
)  # fmt: skip
votes = st.fixed_dictionaries(
    {"actor": st.sampled_from(VOTERS), "decision": st.sampled_from(Decision)},
    optional={"comment": reasons, "data": maybe_json, "digest": st.sampled_from(("right", "RIGHT", "wrong"))},
)
edits = st.fixed_dictionaries(
    {"actor": words},
    optional={
        "priority": st.integers(-1000, 1000), "run_at": st.integers(START - 10**9, START + 10**9),
        "deadline": st.integers(START, START + 10**9), "drop_deadline": st.booleans(),
        "max_attempts": st.integers(1, 100), "tags": some_words, "expected_version": st.integers(1, 5),
    },
)  # fmt: skip


class ApprovalPair(StorePair):
    """Two stores, one script, and people."""

    def __init__(self, left: Rig, right: Rig, tenant: str) -> None:
        super().__init__(left, right, tenant)
        self.approvals: list[str] = []

    def add(self, batch: list[dict[str, Any]], whole: bool) -> None:
        """Jobs without webhooks, which have separate scripts."""
        super().add([{name: facts[name] for name in facts if name != "webhook"} for facts in batch], whole)

    def approval(self, number: int) -> str:
        return self.approvals[-1 - number % len(self.approvals)] if self.approvals else UNKNOWN_LEASE.id

    @rule(number=numbers, asked=questions, checkpoint=st.one_of(st.none(), st.tuples(st.integers(0, 3), json_texts)))
    def request_approval(self, number: int, asked: dict[str, Any], checkpoint: tuple[int, str] | None) -> None:
        lease_ref = self.leases[-1 - number % len(self.leases)] if self.leases else UNKNOWN_LEASE
        approval_id = f"{next(_numbers) * 2_654_435_761 % (1 << 32):08x}-9a7e-7000-8000-000000000000"
        saved = None if checkpoint is None else Checkpoint(lease_ref.id, lease_ref.fence, lease_ref.worker, *checkpoint)
        order = RequestApproval(
            lease_ref.id,
            lease_ref.fence,
            lease_ref.worker,
            approval_id,
            checkpoint=saved,
            **{"opened_by": "w", **asked},
        )
        self.finish([order])
        self.approvals.append(approval_id)

    @rule(number=numbers, asked=questions)
    def request_approval_of_a_new_lease(self, number: int, asked: dict[str, Any]) -> None:
        self.claim_all()
        self.request_approval(0, asked, None)

    @rule(batch=st.lists(st.tuples(st.integers(0, 3), votes), min_size=1, max_size=3))
    def decide(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        commands = []
        for number, facts in batch:
            id = self.approval(number)
            (approval,) = self.both(lambda store, id=id: store.approvals.get(self.tenant, [id]))  # type: ignore[misc]
            right = approval.digest if approval is not None else "0" * 64
            digests = {"right": right, "RIGHT": right.upper(), "wrong": "0" * 64}
            commands.append(CastVote(id=id, **{**facts, "digest": digests.get(facts.get("digest", ""))}))
        self.both(lambda store: store.approvals.decide(self.tenant, commands))

    @rule(actor=st.sampled_from(("user:ann", "user:bob")), decision=st.sampled_from(Decision))
    def decide_about_the_newest(self, actor: str, decision: Decision) -> None:
        self.both(lambda store: store.approvals.decide(self.tenant, [CastVote(self.approval(0), actor, decision)]))

    @rule(number=st.integers(0, 3), actor=st.sampled_from(VOTERS))
    def create_link(self, number: int, actor: str) -> None:
        hash = sha256(f"{self.tenant} {next(_numbers)}".encode()).digest()
        self.both(
            lambda store: store.approvals.create_link(
                self.tenant, [CreateApprovalLink(self.approval(number), actor, hash)]
            )
        )
        self.both(lambda store: store.approvals.of_token(hash))

    @rule(batch=st.lists(st.tuples(numbers, edits), min_size=1, max_size=3))
    def edit(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        ids = self.ids or [UNKNOWN_LEASE.id]
        self.finish([EditJob(id=ids[number % len(ids)], **facts) for number, facts in batch])

    @rule()
    def sweep_gates(self) -> None:
        async def due(store: Store) -> list[str]:
            return sorted(due.job_id for due in await store.approvals.due(10_000) if due.tenant == self.tenant)

        found = [ExpireLease(id) for id in self.both(due)]
        self.both(lambda store: store.carry_out(self.tenant, found))

    @rule(status=st.one_of(st.none(), st.sampled_from(ApprovalStatus)), job=numbers, limit=st.integers(1, 5))
    def page_through_approvals(self, status: ApprovalStatus | None, job: int, limit: int) -> None:
        id = self.ids[job % len(self.ids)] if self.ids and job % 2 else None
        page = self.both(lambda store: store.approvals.find(self.tenant, ApprovalFilter(status, id, limit=limit)))
        if page:
            rest = ApprovalFilter(status, id, before=(page[-1].opened_at, page[-1].id), limit=limit)
            self.both(lambda store: store.approvals.find(self.tenant, rest))

    def teardown(self) -> None:
        self.both(lambda store: store.approvals.get(self.tenant, self.approvals))
        self.both(lambda store: by_job(store, self.tenant, self.ids))
        super().teardown()


async def by_job(store: Store, tenant: str, ids: list[str]) -> list[tuple[str, list[Approval]]]:
    return sorted((await store.approvals.decisions(tenant, ids)).items())


@pytest.fixture
def rigs(postgres: Postgres) -> Iterator[tuple[Rig, Rig]]:
    clock = ManualClock()
    with (
        asyncio.Runner() as runner,
        open_rig("sqlite", postgres, runner, clock) as left,
        open_rig("postgres", postgres, runner, clock) as right,
    ):
        yield left, right


def test_both_engines_decide_and_edit_the_same_way(rigs: tuple[Rig, Rig]) -> None:
    left, right = rigs
    run_state_machine_as_test(lambda: ApprovalPair(left, right, left.new_tenant()), settings=examples(60, 8, steps=25))  # type: ignore[arg-type]
    print("\n".join(f"{count:6} {what}" for what, count in sorted(left.seen.items())))
