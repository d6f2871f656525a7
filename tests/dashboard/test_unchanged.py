"""An approver who changes nothing approves exactly the proposal, with any characters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import urlencode

import httpx2
import pytest
from playwright.async_api import Browser

from interlock.dashboard import forms
from interlock.dashboard.forms import Input
from interlock.dashboard.http import Fields
from interlock.dashboard.lossless_json import decode, encode
from interlock.dashboard.render import Templates, verbatim
from interlock.domain.approval import ApprovalStatus
from tests.dashboard.conftest import Board, follow, patient
from tests.dashboard.scene import Scene
from tests.dashboard.test_forms import an_approval
from tests.support.eventually import RETRY_SECONDS

ODD: Final = "a\r\nb\rc\nd\u200b\u200e\u200f\u202e\u2028\x1b\x7f\x85\ufeff\t &amp; <b>"
SENT_BACK: Final = re.compile(r"""\s(?:value|name)="(\{\{[^"]*?\}\})"|>\s*(\{\{[^<]*?\}\})</textarea>""")
TEXT: Final = {"type": "string"}
TEXTS: Final = {"type": "array", "items": TEXT}
PERSON: Final = {"type": "object", "required": ["name"], "properties": {"name": TEXT, "age": {"type": "integer"}}}


def sent_by_a_browser(fields: Iterable[Input]) -> list[tuple[str, str]]:
    """The result of an unchanged form: line ends are sent as a browser sends them."""
    sent: list[tuple[str, str]] = []
    for field in fields:
        if field.kind == "group":
            sent += sent_by_a_browser(field.fields)
        elif field.kind == "several":
            sent += [(field.name, one) for one in field.value.split("\n") if one]
        elif field.kind != "yes_no" or field.value:
            sent.append((field.name, re.sub(r"\r\n|\r|\n", "\r\n", field.value)))
    return sent


def unchanged(rule: dict[str, Any], proposed: str, *, required: bool) -> str:
    """The result of a field of this rule for an unchanged proposal."""
    schema = json.dumps({"properties": {"it": rule}, "required": ["it"] if required else []})
    details = f'{{"it": {proposed}}}'
    text = forms.data(schema, Fields(urlencode(sent_by_a_browser(forms.inputs(schema, details)))), details)
    return encode(decode(text or "{}").get("it", "it is not there"))


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("rule", "proposed"),
    [
        *(
            (TEXT, json.dumps(text))
            for text in (ODD, "a\r\nb", "a\rb", "a\0b", "\r\n", "\n\na\n", "  ", "", " padded ")
        ),
        ({"type": "string", "format": "email"}, '" ada@example.org "'),
        ({"type": "string", "format": "date"}, '"2026-02-31"'),
        ({"type": ["string", "null"]}, "null"),
        ({"type": ["integer", "null"]}, "null"),
        ({"type": "number"}, "12345678901234567.80"),
        ({"type": "number"}, "-0"),
        ({"type": "object"}, '{"x": 12345678901234567.80, "y": [1e2, {}], "z": []}'),
        ({"type": "object"}, json.dumps({ODD: ODD})),
        (TEXTS, "[]"),
        (TEXTS, json.dumps(["a\u200fb", "c"])),
        (TEXTS, json.dumps([ODD, " a", "a\0"])),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '["b", "a"]'),
        ({"enum": [ODD, "x"]}, json.dumps(ODD)),
        (PERSON, json.dumps({"name": ODD})),
        ({"anyOf": [PERSON, {"type": "null"}]}, "null"),
        ({"type": "object", "properties": {"name": TEXT}}, "{}"),
    ],
)
def test_an_unchanged_proposal_stays_byte_for_byte(rule: dict[str, Any], proposed: str, required: bool) -> None:
    assert unchanged(rule, proposed, required=required) == encode(decode(proposed))


@pytest.mark.parametrize("name", ["a\u200fb", "a\nb", "a\rb", "a\0b", ODD])
def test_the_name_of_a_value_may_have_any_characters(name: str) -> None:
    schema, details = json.dumps({"properties": {name: TEXT}}), json.dumps({name: "x"})
    text = forms.data(schema, Fields(urlencode(sent_by_a_browser(forms.inputs(schema, details)))), details)
    assert json.loads(text or "") == {name: "x"}


def test_an_edited_text_has_plain_line_ends() -> None:
    schema = json.dumps({"properties": {"it": TEXT}})
    text = forms.data(schema, Fields(urlencode({"data.it": "b\r\nc"})), json.dumps({"it": "a\r\nc"}))
    assert json.loads(text or "") == {"it": "b\nc"}


def test_json_input_escapes_deceptive_text() -> None:
    (field,) = forms.inputs(json.dumps({"properties": {"it": {"type": "object"}}}), '{"it": {"a": "b\u202ec"}}')
    assert field.value == '{\n  "a": "b\\u202ec"\n}'


def test_a_submitted_value_is_rendered_unchanged() -> None:
    unescaped = []
    for template in (files("interlock.dashboard") / "templates").iterdir():
        for found in SENT_BACK.finditer(template.read_text()):
            given = found[1] or found[2]
            if not given.endswith("| verbatim }}") and given != "{{ progress.fraction }}":
                unescaped.append((template.name, given))
    assert unescaped == []


def test_a_rendered_value_cannot_leave_its_element() -> None:
    assert verbatim('"></textarea><script>\r\u202e') == "&#34;&gt;&lt;/textarea&gt;&lt;script&gt;&#13;\u202e"
    assert verbatim(None) == ""
    assert (
        Templates()
        .page("sign_in.html", {"next": '"', "provider": None, "accepts_tokens": True} | EMPTY)
        .count(b'value="&#34;"')
        == 1
    )


EMPTY: Final = {
    "error": None, "rejected": None, "navigation": [], "auth": True, "who": type("", (), {"actor": ""})(), "form_token": "",
    "here": "/", "notice": "", "provider": None,
}  # fmt: skip


async def test_a_browser_submits_a_proposal_unchanged(board: Board, stage: Scene, chromium: Browser) -> None:
    proposed = {"title": ODD, "short": "a\u200fb\u200b\x1bc", "lines": ["x\u200fy", "z"], "more": {"k": ODD}}
    schema = {
        "type": "object",
        "required": [*proposed],
        "properties": {"title": TEXT, "short": TEXT, "lines": TEXTS, "more": {"type": "object"}},
    }
    approval = await an_approval(board, stage.tenant, schema, proposed)
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{board.url}/approvals/{approval}")
    await follow(page.get_by_role("button", name="Approve"))
    after = await board.engine.approvals.get(stage.tenant, approval)
    assert (after.status, json.loads(after.data or "")) == (ApprovalStatus.APPROVED, proposed)


async def test_a_filter_is_resubmitted_with_the_same_characters(board: Board, stage: Scene) -> None:
    odd = "a\u200f\u2028b"
    async with httpx2.AsyncClient(base_url=board.url, trust_env=False, timeout=RETRY_SECONDS) as http:
        page = (await http.get("/jobs", params={"type": odd, "tag": odd, "worker": odd})).text
    assert page.count(f'value="{odd}"') == 9, "each in its field, in the search, and with what is done to all that fit"
