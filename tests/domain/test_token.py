"""The text of a token and what may stand in one."""

from __future__ import annotations

import hashlib
import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.domain import token
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, local
from interlock.domain.token import Token, TokenUse
from interlock.errors import Forbidden, Invalid

secrets = st.binary(min_size=32, max_size=32)
TOKEN = token.spell(bytes(range(32)))


def kept(**fields: object) -> Token:
    values = {
        "tenant": "acme", "id": "an-id", "description": None, "roles": ("read",), "worker_id": None, "types": None,
        "repositories": None, "capabilities": (), "key": None, "created_at": 0, "created_by": "user:ada",
        "expires_at": None, "last_used_at": None, "revoked_at": None, "revoked_by": None,
    }  # fmt: skip
    return Token(**values | fields)  # type: ignore[arg-type]


@given(secrets)
def test_an_encoded_token_round_trips(secret: bytes) -> None:
    text = token.spell(secret)
    assert token.is_whole(text)
    assert re.fullmatch("ilk_[0-9A-Za-z]{49}", text)


@given(secrets, secrets)
def test_two_secrets_have_two_texts(a: bytes, b: bytes) -> None:
    assert (token.spell(a) == token.spell(b)) is (a == b)


@pytest.mark.parametrize("secret", [bytes(32), b"\xff" * 32], ids=["least", "greatest"])
def test_the_smallest_and_the_largest_secret_have_the_same_length(secret: bytes) -> None:
    assert len(token.spell(secret)) == len(TOKEN)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_token_has_256_bits(size: int) -> None:
    with pytest.raises(ValueError, match="32 random bytes"):
        token.spell(bytes(size))


@given(secrets, st.integers(0, len(TOKEN) - 1), st.characters(max_codepoint=0x17F))
def test_any_changed_character_is_detected(secret: bytes, place: int, other: str) -> None:
    text = token.spell(secret)
    changed = text[:place] + other + text[place + 1 :]
    assert token.is_whole(changed) is (changed == text)


@given(secrets, st.integers(0, len(TOKEN) - 1))
def test_a_truncated_token_is_detected(secret: bytes, length: int) -> None:
    text = token.spell(secret)
    assert not token.is_whole(text[:length])
    assert not token.is_whole(text[len(text) - length :])


@given(secrets, st.integers(0, len(TOKEN)), st.sampled_from("\0\n\r\t a0_é\U0001f511\ud800"))
def test_an_extra_character_is_detected(secret: bytes, place: int, more: str) -> None:
    text = token.spell(secret)
    assert not token.is_whole(text[:place] + more + text[place:])


@given(secrets)
def test_a_changed_case_is_detected(secret: bytes) -> None:
    text = token.spell(secret)
    for other in (text.upper(), text.lower(), text.swapcase(), text.title()):
        assert not token.is_whole(other)


@given(secrets, st.integers(4, len(TOKEN) - 2))
def test_two_swapped_characters_are_detected(secret: bytes, place: int) -> None:
    text = token.spell(secret)
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert token.is_whole(swapped) is (swapped == text)


@pytest.mark.parametrize(
    "junk", ["", "nothing", "ilk_", "ilk_" + "0" * 49, "Bearer " + TOKEN, TOKEN * 2, "x" * 100_000]
)
def test_random_text_is_not_a_token(junk: str) -> None:
    assert not token.is_whole(junk)


def test_the_hash_is_sha_256_of_the_whole_text() -> None:
    assert token.fingerprint(TOKEN) == hashlib.sha256(TOKEN.encode()).digest()


def test_a_token_record_matches_only_its_own_hash() -> None:
    hash = token.fingerprint(TOKEN)
    assert TokenUse(kept(), hash, 0).admits(hash)
    assert not TokenUse(kept(), hash, 0).admits(bytes(32))
    assert not TokenUse(kept(revoked_at=0, revoked_by="user:ada"), hash, 0).admits(hash)
    assert not TokenUse(kept(expires_at=10), hash, 10).admits(hash)


ALL_SETS = [set(some) for n in range(len(ROLES) + 1) for some in combinations(sorted(ROLES), n)]


@pytest.mark.parametrize("roles", ALL_SETS, ids=lambda roles: "+".join(sorted(roles)) or "none")
def test_which_roles_are_compatible(roles: set[str]) -> None:
    """Every set of roles, on a worker's token and on another."""
    for worker_id, fine in (
        (None, bool(roles) and ("work" not in roles or roles <= {"work", "produce", "read"})),
        ("w1", "work" in roles and roles <= {"work", "produce", "read"}),
    ):
        if fine:
            assert token.roles(roles, worker_id=worker_id) == tuple(sorted(roles))
        else:
            with pytest.raises(Invalid) as caught:
                token.roles(roles, worker_id=worker_id)
            assert caught.value.pointer == "/roles"


@pytest.mark.parametrize("roles", [["king"], ["Admin"], ["admin "] * 2, ["*"], [""]])
def test_a_role_that_does_not_exist_is_rejected(roles: list[str]) -> None:
    with pytest.raises(Invalid):
        token.roles(roles, worker_id=None)


def test_absent_or_a_star_means_any_and_an_empty_list_none() -> None:
    assert token.types(None) is token.types(["*"]) is token.repositories(None) is token.repositories(["*"]) is None
    assert token.types([]) == token.repositories([]) == ()
    assert token.capabilities(None) == token.capabilities([]) == ()


def test_names_are_trimmed_sorted_and_normalized() -> None:
    assert token.types([" b", "a "]) == ("a", "b")
    assert token.repositories(["org/repo.git/", "org/a"]) == ("org/a", "org/repo")
    assert token.capabilities([" gpu "]) == ("gpu",)


@pytest.mark.parametrize("values", [["a", "a"], ["a", " a "], [""], ["  "], ["a\nb"], ["*", "a"], ["x" * 201], ["\0"]])
def test_lists_of_invalid_names_are_rejected(values: list[str]) -> None:
    for read, pointer in (
        (token.types, "/types"), (token.repositories, "/repositories"), (token.capabilities, "/capabilities"),
    ):  # fmt: skip
        with pytest.raises(Invalid) as caught:
            read(values)
        assert caught.value.pointer == pointer


def test_a_repository_named_twice_in_two_spellings_is_rejected() -> None:
    with pytest.raises(Invalid):
        token.repositories(["org/repo", "org/repo.git"])


def test_there_is_no_star_for_capabilities() -> None:
    with pytest.raises(Invalid):
        token.capabilities(["*"])


def test_a_thousand_names_are_accepted_and_no_more() -> None:
    assert len(token.types([f"t{i}" for i in range(1000)]) or ()) == 1000
    with pytest.raises(Invalid):
        token.types([f"t{i}" for i in range(1001)])


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "x" * 201])
def test_invalid_names_of_workers_are_rejected(name: str) -> None:
    with pytest.raises(Invalid):
        token.worker_id(name)


def test_a_worker_token_authenticates_that_worker() -> None:
    who = kept(roles=("work",), worker_id="w1", types=("build",), capabilities=("gpu",)).principal()
    assert (who.tenant, who.actor, who.worker, who.roles) == ("acme", "worker:w1", "w1", frozenset({"work"}))
    assert not who.unchecked
    wide = ClaimFilter("w1", types=None, capabilities=frozenset({"gpu", "root"}))
    assert who.narrowed(wide) == ClaimFilter("w1", types=frozenset({"build"}), capabilities=frozenset({"gpu"}))
    assert who.narrowed(ClaimFilter("w1", types=frozenset({"deploy"}))).types == frozenset()


def test_another_token_authenticates_its_bearer() -> None:
    who = kept(roles=("admin", "read")).principal()
    assert (who.actor, who.worker) == ("token:an-id", None)
    assert who.may("admin")
    assert not who.may("work")


def test_a_worker_token_without_a_name_uses_its_own_id() -> None:
    who = kept(roles=("work",)).principal()
    assert who.works_as(None) == "an-id"
    assert who.works_as("an-id/2") == "an-id/2"
    with pytest.raises(Forbidden):
        who.works_as("w1")


@pytest.mark.parametrize("asked", ["w2", "w1x", "w1/", "w1x/1", "W1", "", "/", "w1 ", "w"])
def test_a_token_cannot_use_the_name_of_another_worker(asked: str) -> None:
    who = Principal("acme", "worker:w1", frozenset({"work"}), "w1")
    with pytest.raises(Forbidden):
        who.works_as(asked)


def test_a_worker_uses_its_name_or_an_instance_of_it() -> None:
    who = Principal("acme", "worker:w1", frozenset({"work"}), "w1")
    assert [who.works_as(asked) for asked in (None, "w1", "w1/a", "w1/a/b")] == ["w1", "w1", "w1/a", "w1/a/b"]


def test_without_auth_any_worker_name_is_allowed_and_nothing_is_narrowed() -> None:
    who = local()
    wide = ClaimFilter("w1", capabilities=frozenset({"gpu"}))
    assert who.works_as("w1") == "w1"
    assert who.narrowed(wide) == wide
    with pytest.raises(Invalid):
        who.works_as(None)


@pytest.mark.parametrize("role", sorted(ROLES))
def test_a_role_is_needed_exactly(role: str) -> None:
    Principal("acme", "token:x", frozenset({role})).need(role)
    with pytest.raises(Forbidden, match=role):
        Principal("acme", "token:x", ROLES - {role}).need(role)
