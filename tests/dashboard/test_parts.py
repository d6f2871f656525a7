"""The parts under the pages: sessions, forms from schemas, values as trees, plots."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from interlock.dashboard import forms, plots, values
from interlock.dashboard.pages.session import local_path
from interlock.dashboard.render import inert, span
from interlock.dashboard.samples import KEPT, Samples
from interlock.dashboard.sessions import IDLE_SECONDS, MOST_SESSIONS, Sessions
from interlock.dashboard.web import Fields
from interlock.domain.registry import QueueStats
from interlock.errors import Invalid


def test_a_session_is_used_or_forgotten() -> None:
    now = 0.0
    sessions = Sessions(ticks=lambda: now)
    used, idle = sessions.begin("ilk_a"), sessions.begin("ilk_b")
    now = IDLE_SECONDS - 1
    assert sessions.credential(used, used=True) == "ilk_a"
    assert sessions.credential(idle, used=False) == "ilk_b"
    now = IDLE_SECONDS + 1
    assert sessions.credential(used, used=True) == "ilk_a"
    assert sessions.credential(idle, used=True) is None


def test_there_are_only_so_many_sessions_and_the_least_used_goes() -> None:
    sessions = Sessions(ticks=lambda: 0.0)
    first, second = sessions.begin("a"), sessions.begin("b")
    sessions.credential(first, used=True)
    for _ in range(MOST_SESSIONS - 1):
        sessions.begin("c")
    assert sessions.credential(first, used=True) == "a"
    assert sessions.credential(second, used=True) is None


def test_a_form_token_is_good_for_its_own_session_alone() -> None:
    sessions = Sessions()
    mine, yours = sessions.begin("a"), sessions.begin("b")
    assert sessions.is_form_token(sessions.form_token(mine), mine)
    assert not sessions.is_form_token(sessions.form_token(mine), yours)
    assert not sessions.is_form_token(None, mine)
    assert not Sessions().is_form_token(sessions.form_token(None), None)


SCHEMA = json.dumps(
    {
        "properties": {
            "name": {"type": "string"},
            "n": {"type": "integer"},
            "x": {"type": "number"},
            "ok": {"type": "boolean"},
            "size": {"enum": ["s", 2, None]},
            "list": {"type": "array"},
        },
        "required": ["name"],
    }
)


def test_a_filled_in_form_becomes_json_of_the_right_types() -> None:
    filled = {"data.name": 'a "b"\r\nc', "data.n": "12345678901234567890", "data.x": "1.50", "data.ok": "true"}
    text = forms.data(SCHEMA, Fields(urlencode(filled | {"data.size": "2", "data.list": "[1, 2]"})))
    assert (
        text == '{"name": "a \\"b\\"\\nc", "n": 12345678901234567890, "x": 1.50, "ok": true, "size": 2, "list": [1, 2]}'
    )


def test_an_empty_field_is_left_out_unless_it_must_be_there() -> None:
    text = forms.data(SCHEMA, Fields("data.name=&data.n=&data.list="))
    assert json.loads(text or "") == {"name": "", "ok": False}


@pytest.mark.parametrize("sent", ["data.n=1%7D", "data.x=NaN", "data.size=%22other%22"])
def test_a_field_cannot_smuggle_in_what_it_is_not(sent: str) -> None:
    with pytest.raises(Invalid):
        forms.data(SCHEMA, Fields(sent))


def test_a_form_is_filled_with_what_was_proposed() -> None:
    fields = forms.inputs(SCHEMA, json.dumps({"name": "tides", "size": "s", "list": [1]}))
    assert [field.value for field in fields] == ["tides", "", "", "", '"s"', "[\n  1\n]"]


def test_what_no_field_fits_is_asked_for_as_json() -> None:
    assert [field.kind for field in forms.inputs('{"type": "array"}', None)] == ["json"]
    assert forms.data('{"type": "array"}', Fields("data=%5B1%5D")) == "[1]"
    assert forms.inputs(None, None) == []


def test_a_tree_keeps_numbers_as_they_were_written_and_names_in_their_order() -> None:
    tree = values.tree('{"b": 1.10, "a": [1e400, {}], "b": null}')
    assert tree is not None
    assert tree.root is not None
    assert [(node.name, node.text) for node in tree.root.children] == [("b", "1.10"), ("a", "2 items"), ("b", "null")]
    assert [node.text for node in tree.root.children[1].children] == ["1e400", "0 fields"]


@pytest.mark.parametrize("text", ["[" + "1," * values.MOST_NODES + "1]", json.dumps("x" * values.LONGEST_SHOWN)])
def test_a_large_value_is_shown_by_its_beginning(text: str) -> None:
    tree = values.tree(text)
    assert tree is not None
    assert tree.is_cut
    assert len(tree.text) <= values.LONGEST_TEXT
    assert tree.size == len(text)


def test_a_plot_stays_in_its_box() -> None:
    line = plots.line([0, 5, 1000, 3])
    assert line is not None
    points = [tuple(map(float, point.split(","))) for point in line.line[1:].split(" L")]
    assert all(0 <= x <= plots.WIDTH and 0 <= y <= plots.HEIGHT for x, y in points)
    assert points[-1][0] == pytest.approx(plots.WIDTH, abs=0.1)
    assert plots.line([1]) is None


def test_every_part_of_a_bar_can_be_seen_and_all_fit() -> None:
    parts = plots.bar(QueueStats("t", ready=1_000_000, dead_letter=1))
    assert [part.name for part in parts] == ["ready", "dead_letter"]
    assert min(part.width for part in parts) >= 3
    assert parts[-1].x + parts[-1].width == pytest.approx(100, abs=0.1)
    assert plots.bar(QueueStats("t")) == []


def test_samples_are_few_and_of_one_tenant() -> None:
    samples = Samples()
    for second in range(1000):
        samples.add("a", [QueueStats("t", ready=second), QueueStats("u", ready=1)], second * 1_000_000)
    assert len(samples.of("a", "t")) == KEPT
    assert samples.all("a")[-1].waiting == samples.of("a", "t")[-1].waiting + 1
    assert samples.of("b", "t") == ()


def test_text_that_would_deceive_the_eye_is_spelled_out() -> None:
    assert inert("invoice\u202egnp.exe\x1b[31m\n") == "invoice\\u202egnp.exe\\u001b[31m\n"
    assert inert("naïve 日本語 🙂") == "naïve 日本語 🙂"


@pytest.mark.parametrize(
    ("seconds", "read"), [(0, "0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (700, "11 min")]
)
def test_a_length_of_time_reads_well(seconds: float, read: str) -> None:
    assert span(seconds) == read


@pytest.mark.parametrize("path", ["//x", "/\\x", "https://x", "x", "", None, "/a\nb", "/ä"])
def test_only_paths_of_our_own_are_gone_on_to(path: str | None) -> None:
    assert local_path(path) == "/"
    assert local_path("/jobs?status=running") == "/jobs?status=running"
