"""The parts under the pages: sessions, values as trees, plots."""

from __future__ import annotations

import json

import pytest

from interlock.dashboard import json_tree, plots
from interlock.dashboard.http import MAX_BACK_LENGTH, Fields
from interlock.dashboard.pages.session import local_path
from interlock.dashboard.render import printable, span
from interlock.dashboard.sessions import IDLE_SECONDS, MAX_SESSION_SECONDS, Session, Sessions
from interlock.dashboard.sign_in_throttle import MAX_ADDRESSES, MAX_WRONG_ATTEMPTS, WINDOW_SECONDS, SignInThrottle
from interlock.domain.registry import QueueStats
from interlock.errors import Invalid


def begun(sessions: Sessions, credential: str) -> tuple[str, Session]:
    _, cookie = sessions.begin(credential)
    session = sessions.read(cookie)
    assert session is not None
    return cookie, session


def test_an_idle_session_is_forgotten() -> None:
    now = 0.0
    sessions = Sessions(seconds=lambda: now)
    cookie, session = begun(sessions, "ilk_a")
    assert sessions.renewed(session) is None  # it is fresh
    now = IDLE_SECONDS - 1
    renewed = sessions.renewed(session)
    now = IDLE_SECONDS + 1
    again = sessions.read(renewed)
    assert again is not None
    assert (again.id, again.credential) == (session.id, "ilk_a")
    assert sessions.read(cookie) is None


def test_no_session_lasts_longer_than_a_day() -> None:
    now = 0.0
    sessions = Sessions(seconds=lambda: now)
    _, cookie = sessions.begin("ilk_a")
    while (session := sessions.read(cookie)) is not None:
        now += IDLE_SECONDS - 1
        cookie = sessions.renewed(session) or cookie
    assert MAX_SESSION_SECONDS <= now < MAX_SESSION_SECONDS + IDLE_SECONDS


def test_a_cookie_is_valid_only_under_its_key() -> None:
    _, cookie = Sessions(b"one key").begin("ilk_secret")
    there = Sessions(b"one key").read(cookie)
    assert there is not None
    assert there.credential == "ilk_secret"
    assert Sessions(b"another").read(cookie) is None
    assert "ilk_secret" not in cookie
    assert "ilk_secret" not in repr(there)


def test_a_changed_cookie_is_invalid() -> None:
    sessions = Sessions()
    _, cookie = sessions.begin("ilk_a")
    parts = cookie.split(".")
    for i, part in enumerate(parts):
        changed = [*parts[:i], part[:-2] + ("AA" if part[-2:] != "AA" else "BB"), *parts[i + 1 :]]
        assert sessions.read(".".join(changed)) is None
    for odd in ("", ".", "....", "a.b.c.d.e", cookie + "x", cookie[1:], "\ud800", "x" * 100_000):
        assert sessions.read(odd) is None


def test_a_credential_that_no_browser_would_store_is_rejected() -> None:
    with pytest.raises(Invalid, match="too long"):
        Sessions().begin("x" * 4000)


def test_a_form_token_is_valid_for_its_own_session_only() -> None:
    sessions = Sessions()
    (_, mine), (_, yours) = begun(sessions, "a"), begun(sessions, "b")
    assert sessions.is_form_token(sessions.form_token(mine), mine)
    assert not sessions.is_form_token(sessions.form_token(mine), yours)
    assert not sessions.is_form_token(None, mine)
    assert not sessions.is_form_token("\ud800", mine)
    assert not Sessions().is_form_token(sessions.form_token(None), None)


def test_wrong_tokens_are_counted_by_network_and_forgotten_after_a_minute() -> None:
    now = 0.0
    throttle = SignInThrottle(seconds=lambda: now)
    for i in range(MAX_WRONG_ATTEMPTS):
        assert throttle.seconds_to_wait("2001:db8::1") == 0
        throttle.record_failure(f"2001:db8::{i:x}")
    assert throttle.seconds_to_wait("2001:db8::ffff") == WINDOW_SECONDS
    assert throttle.seconds_to_wait("2001:db8:0:1::1") == 0
    assert throttle.seconds_to_wait("127.0.0.1") == 0
    now = WINDOW_SECONDS
    assert throttle.seconds_to_wait("2001:db8::1") == 0


def test_wrong_tokens_from_many_networks_do_not_fill_the_memory() -> None:
    throttle = SignInThrottle(seconds=lambda: 0.0)
    for i in range(MAX_ADDRESSES + 100):
        throttle.record_failure(str(i))
    assert len(throttle._counts) == MAX_ADDRESSES


def test_a_tree_keeps_numbers_as_written_and_names_in_order() -> None:
    tree = json_tree.tree('{"b": 1.10, "a": [1e400, {}], "b": null}')
    assert tree is not None
    assert tree.root is not None
    assert [(node.name, node.text) for node in tree.root.children] == [("b", "1.10"), ("a", "2 items"), ("b", "null")]
    assert [node.text for node in tree.root.children[1].children] == ["1e400", "0 fields"]


@pytest.mark.parametrize("text", ["[" + "1," * json_tree.MAX_NODES + "1]", json.dumps("x" * json_tree.MAX_TREE_BYTES)])
def test_a_large_value_is_truncated(text: str) -> None:
    tree = json_tree.tree(text)
    assert tree is not None
    assert tree.is_cut
    assert len(tree.text) <= json_tree.MAX_PREVIEW_LENGTH
    assert tree.size == len(text)


def test_every_part_of_a_bar_is_visible_and_all_fit() -> None:
    parts = plots.bar(QueueStats("t", ready=1_000_000, dead_letter=1))
    assert [part.name for part in parts] == ["ready", "dead_letter"]
    assert min(part.width for part in parts) >= 3
    assert parts[-1].x + parts[-1].width == pytest.approx(100, abs=0.1)
    assert plots.bar(QueueStats("t")) == []


def test_deceptive_text_is_escaped() -> None:
    assert printable("invoice\u202egnp.exe\x1b[31m\n") == "invoice\\u202egnp.exe\\u001b[31m\n"
    assert printable("naïve 日本語 🙂") == "naïve 日本語 🙂"


@pytest.mark.parametrize(
    ("seconds", "read"), [(0, "0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (700, "11 min")]
)
def test_a_duration_is_readable(seconds: float, read: str) -> None:
    assert span(seconds) == read


@pytest.mark.parametrize("path", ["//x", "/\\x", "https://x", "x", "", None, "/a\nb", "/ä"])
def test_only_local_paths_are_followed(path: str | None) -> None:
    assert local_path(path) == "/"
    assert local_path("/jobs?status=running") == "/jobs?status=running"


def test_a_list_can_be_paged_back() -> None:
    asked, place = "kind=line&tag=a&tag=b&notice=edited", "kind=line&tag=a&tag=b"
    on = Fields(asked).paging("before", next={"before": 30})
    assert on.back is None
    third = Fields(on.next or "").paging("before", next={"before": 20})
    assert third.back == place
    last = Fields(third.next or "").paging("before", next=None)
    assert last.next is None
    assert Fields(last.back or "").paging("before", next={"before": 20}) == third


def test_a_page_opened_directly_leads_back_to_the_first() -> None:
    assert Fields("before=7&type=x").paging("before", next=None).back == "type=x"
    far = "&".join(f"back=before%3D{n}" for n in range(1_000))
    turned = Fields(f"before=7&{far}").paging("before", next={"before": 1})
    assert len(turned.next or "") < 4 * MAX_BACK_LENGTH
    assert (turned.back or "").startswith("before=999&back=")
