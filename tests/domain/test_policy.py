"""Who may claim what: a claim narrows a policy and never widens it; names are matched exactly, in one spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain.policy import (
    MAX_NAMES,
    ClaimFilter,
    Policy,
    any_or,
    check_needs,
    fits,
    names,
    narrow,
    repository,
)
from interlock.errors import Invalid

NAMES = ("a", "b", "c")
some = st.frozensets(st.sampled_from(NAMES))
any_or_some = st.none() | some
asks = st.builds(
    ClaimFilter, worker=st.just("w"), types=any_or_some, repositories=any_or_some, capabilities=some, affinity_keys=any_or_some,
    limit=st.integers(1, 9), lease_seconds=st.just(60.0), claim_id=st.none(),
)  # fmt: skip
policies = st.builds(Policy, types=any_or_some, repositories=any_or_some, capabilities=some)
needs = st.fixed_dictionaries(
    {
        "type": st.sampled_from(NAMES),
        "requires": some,
        "repository": st.none() | st.sampled_from(NAMES),
        "affinity_key": st.none() | st.sampled_from(NAMES),
    }
)


def allowed(policy: Policy) -> ClaimFilter:
    """The widest claim that a policy allows; no policy limits the affinity key."""
    return ClaimFilter("w", policy.types, policy.repositories, policy.capabilities, None)


@given(asks, policies, needs)
def test_a_claim_narrows_and_never_widens(ask: ClaimFilter, policy: Policy, job: dict[str, object]) -> None:
    """G20: what a narrowed ask fits, both the ask and the policy fit."""
    both = fits(ask, **job) and fits(allowed(policy), **job)  # type: ignore[arg-type]
    assert fits(narrow(ask, policy), **job) is both  # type: ignore[arg-type]


@given(asks, policies)
def test_narrowing_twice_is_narrowing_once_and_touches_nothing_else(ask: ClaimFilter, policy: Policy) -> None:
    narrowed = narrow(ask, policy)
    assert narrow(narrowed, policy) == narrowed
    assert (narrowed.worker, narrowed.limit, narrowed.affinity_keys) == (ask.worker, ask.limit, ask.affinity_keys)


@pytest.mark.parametrize("field", ["types", "repositories"])
@pytest.mark.parametrize(
    ("asked", "allowed", "expected"),
    [(None, None, None), ("a", None, "a"), (None, "a", "a"), ("ab", "bc", "b"), ("a", "b", "")],
)
def test_a_claim_gets_the_names_that_its_policy_has_too(
    field: str, asked: str | None, allowed: str | None, expected: str | None
) -> None:
    asks, has, gets = ({field: None if some is None else frozenset(some)} for some in (asked, allowed, expected))
    narrowed = narrow(ClaimFilter("w", **asks), Policy(**has))  # type: ignore[arg-type]
    assert getattr(narrowed, field) == gets[field]


def test_a_policy_that_names_no_capabilities_has_none() -> None:
    assert narrow(ClaimFilter("w", capabilities=frozenset({"gpu"})), Policy()).capabilities == frozenset()


@pytest.mark.parametrize(
    ("ask", "job", "may"),
    [
        ({}, {}, True),
        ({"types": {"t"}}, {}, True),
        ({"types": {"T"}}, {}, False),
        ({"types": set()}, {}, False),
        ({}, {"requires": ("gpu",)}, False),
        ({"capabilities": {"gpu"}}, {"requires": ("gpu",)}, True),
        ({"capabilities": {"gpu"}}, {"requires": ("gpu", "net")}, False),
        ({"capabilities": {"gpu", "net"}}, {"requires": ("gpu",)}, True),
        ({"repositories": None}, {"repository": "r"}, True),
        ({"repositories": set()}, {"repository": "r"}, False),
        ({"repositories": None}, {"repository": None}, True),
        ({"repositories": set()}, {"repository": None}, False),
        ({"repositories": {"r"}}, {"repository": None}, False),
        ({"repositories": {"r"}}, {"repository": "r"}, True),
        ({"repositories": {"r"}}, {"repository": "r-evil"}, False),
        ({"affinity_keys": None}, {"affinity_key": "k"}, True),
        ({"affinity_keys": set()}, {"affinity_key": "k"}, False),
        ({"affinity_keys": set()}, {"affinity_key": None}, True),
        ({"affinity_keys": {"k"}}, {"affinity_key": "k"}, True),
    ],
)
def test_which_job_matches_which_filter(ask: dict[str, set[str] | None], job: dict[str, object], may: bool) -> None:
    wanted = {name: None if values is None else frozenset(values) for name, values in ask.items()}
    facts = {"type": "t", "requires": (), "repository": None, "affinity_key": None, **job}
    assert fits(ClaimFilter("w", **wanted), **facts) is may  # type: ignore[arg-type]


def test_names_are_trimmed_unique_and_sorted() -> None:
    assert names([" b", "a ", "ä"], what="tags") == ("a", "b", "ä")
    assert names([], what="tags") == ()


@pytest.mark.parametrize("values", [[""], [" "], ["a", " a"], ["a\nb"], ["\u200b"], ["x" * 201], ["\x00"]])
def test_invalid_names_are_rejected(values: list[str]) -> None:
    with pytest.raises(Invalid) as caught:
        names(values, what="capabilities")
    assert caught.value.pointer == "/capabilities"


@pytest.mark.parametrize(
    ("given_as", "meant"),
    [(None, None), (["*"], None), ([], frozenset()), (["a"], frozenset({"a"})), (["a", " * "], None)],
)
def test_absent_and_star_mean_any_and_an_empty_list_none(
    given_as: list[str] | None, meant: frozenset[str] | None
) -> None:
    assert any_or(given_as, what="types") == meant


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("org/repo", "org/repo"),
        (" org/repo ", "org/repo"),
        ("org/repo/", "org/repo"),
        ("org/repo.git", "org/repo"),
        ("org/repo.git/", "org/repo"),
        ("org/repo//", "org/repo"),
        ("org/repo/.git", "org/repo"),
        ("Org/Repo", "Org/Repo"),
        ("org/re\u0301po", "org/r\u00e9po"),
        ("https://host/org/repo.git", "https://host/org/repo"),
        ("org/../repo", "org/../repo"),
    ],
)
def test_a_repository_has_one_spelling(spelling: str, name: str) -> None:
    assert repository(spelling) == name
    assert repository(name) == name


@pytest.mark.parametrize("value", ["", " ", "/", ".git", "//.git/", "a\nb", "\u200b", "org/repo.git.git", "a.git/.git"])
def test_an_invalid_repository_is_rejected(value: str) -> None:
    with pytest.raises(Invalid) as caught:
        repository(value)
    assert caught.value.pointer == "/repository"


@given(
    st.text(st.sampled_from("a/. \u0301e") | st.characters(), max_size=20).map(lambda text: text.replace(".", ".git"))
)
def test_normalizing_a_repository_twice_changes_nothing_more(value: str) -> None:
    try:
        once = repository(value)
    except Invalid:
        return
    assert repository(once) == once


@given(st.lists(st.text(max_size=5), max_size=5))
def test_normalized_names_stay_unchanged(values: list[str]) -> None:
    try:
        once = names(values, what="tags")
    except Invalid:
        return
    assert names(once, what="tags") == once
    assert list(once) == sorted(set(once))


def test_the_number_of_names_is_limited() -> None:
    assert len(names((str(n) for n in range(MAX_NAMES)), what="types")) == MAX_NAMES
    with pytest.raises(Invalid, match="the limit is 1000"):
        names((str(n) for n in range(MAX_NAMES + 1)), what="types")


@pytest.mark.parametrize(
    ("needs", "pointer"),
    [
        (("t", ["x" * 200] * 8, None, None), "/requires"),
        (("t" * 200, [], "\U00020000" * 200, "\U00020000" * 200), "/affinity_key"),
        (("\U00020000" * 200, [], "\U00020000" * 250, None), "/repository"),
    ],
)
def test_requirements_too_long_for_an_index_are_rejected(
    needs: tuple[str, list[str], str | None, str | None], pointer: str
) -> None:
    with pytest.raises(Invalid) as caught:
        check_needs(*needs)
    assert caught.value.pointer == pointer


def test_requirements_of_usual_length_are_accepted() -> None:
    check_needs("t" * 200, [f"capability-{n}" for n in range(40)], "r" * 200, "a" * 200)
    check_needs("\U00020000" * 200, [], "\U00020000" * 200)
