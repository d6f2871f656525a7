"""Approval requests as Markdown, and how edited data differs from what was proposed."""

from __future__ import annotations

import json
import re

import pytest
from playwright.async_api import Browser, expect

from interlock.dashboard.edits import Edit, Line, edits
from interlock.dashboard.markdown import MAX_LENGTH, headline, request
from interlock.domain.approval import RequestApproval
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import ROLES, Principal, user
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, follow
from tests.dashboard.scene import Scene
from tests.dashboard.test_decisions import opened
from tests.dashboard.test_forms import an_approval

HOSTILE = """# Release **2.0**

Deploy to [staging](https://staging.example/x "over the top") or [run me](javascript:window.xss=1)?

<script>window.xss=1</script><img src=x onerror=window.xss=1><!-- hidden -->

![picture](https://outside.example/pixel.png)

[away]: https://outside.example/ "hidden"

| host | state |
|------|-------|
| a    | ok    |
"""


@pytest.mark.parametrize(
    ("text", "heading", "body"),
    [
        ("Publish *this*?", "Publish <em>this</em>?", None),
        ("# Plan #\n\n- one\n- two", "Plan", "<ul>\n<li>one</li>\n<li>two</li>\n</ul>\n"),
        ("Delete rows?\n- a", "Delete rows?", "<ul>\n<li>a</li>\n</ul>\n"),
        ("Plan\n====\ntext", "Plan", "<p>text</p>\n"),
        (
            "Plan\n\n|a|b|c|\n|-|:-:|-:|\n|1|2|3|",
            "Plan",
            '<table>\n<thead>\n<tr>\n<th>a</th>\n<th class="is-center">b</th>\n<th class="is-right">c</th>\n</tr>\n</thead>\n'
            '<tbody>\n<tr>\n<td>1</td>\n<td class="is-center">2</td>\n<td class="is-right">3</td>\n</tr>\n</tbody>\n</table>\n',
        ),
        ("```\nrm -r *\n```", "Request", "<pre><code>rm -r *\n</code></pre>\n"),
        ("a_b_c < d & \u202ee", "a_b_c &lt; d &amp; \\u202ee", None),
        ("[x](data:text/html,1) [y](//z) [z](ftp://z)", "[x](data:text/html,1) [y](//z) [z](ftp://z)", None),
    ],
)
def test_a_request_is_a_heading_and_its_text(text: str, heading: str, body: str | None) -> None:
    found = request(text)
    assert (found.heading, found.body) == (heading, body)


def test_nothing_of_the_text_becomes_markup_and_nothing_is_hidden() -> None:
    found = request(HOSTILE)
    assert found.body is not None
    assert {*re.findall(r"<([a-z0-9]+)", found.body)} <= {
        "p", "a", "span", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert not re.search(r"<[^>]*(javascript|onerror)", found.body)
    for text in ("https://staging.example/x", "javascript:window.xss=1", "onerror", "hidden", "pixel.png", "[away]"):
        assert text in found.body
    assert found.is_formatted
    assert not request("plain").is_formatted


def test_a_long_text_is_displayed_as_it_is() -> None:
    text = "*a* " * MAX_LENGTH
    assert request(text).heading == text


def test_lists_show_the_first_line_without_markdown() -> None:
    assert headline(HOSTILE) == "Release 2.0"
    assert headline("**Really** `drop` it?\nyes") == "Really drop it?"


def test_edits_are_the_members_that_differ_from_the_proposal() -> None:
    proposed = {"title": "a", "n": 1, "left": 1, "to": {"name": "Ada", "cc": [1]}, "other": 1, "body": "x\ny\nz"}
    decided = {"title": "b", "n": 1, "to": {"name": "Mira", "cc": [1]}, "new": None, "body": "x\nY\nz"}
    names = {"title", "n", "left", "to", "new", "body"}
    assert edits(json.dumps(proposed), json.dumps(decided), names) == [
        Edit("title", (Line("removed", "a"), Line("added", "b"))),
        Edit("left", (Line("removed", "1"),)),
        Edit("to.name", (Line("removed", "Ada"), Line("added", "Mira"))),
        Edit("body", (Line("kept", "x"), Line("removed", "y"), Line("added", "Y"), Line("kept", "z"))),
        Edit("new", (Line("added", "null"),)),
    ]


@pytest.mark.parametrize(
    ("proposed", "decided"), [(None, "{}"), ("{}", None), ("{}", "{}"), ("[1]", "{}"), ('{"n": 1.0}', '{"n": 1.0}')]
)
def test_equal_or_incomparable_data_has_no_edits(proposed: str | None, decided: str | None) -> None:
    assert edits(proposed, decided, {"n"}) == []


def test_a_text_is_not_equal_to_the_number_that_it_spells() -> None:
    (edit,) = edits('{"n": "1"}', '{"n": 1}', {"n"})
    assert edit.lines == (Line("removed", '"1"'), Line("added", "1"))


def test_unchanged_lines_far_from_a_change_are_left_out() -> None:
    lines = [str(n) for n in range(20)]
    (edit,) = edits(json.dumps("\n".join(lines)), json.dumps("\n".join(["first", *lines[1:-1], "last"])), ())
    assert [line.text for line in edit.lines if line.kind == "gap"] == ["…"]
    assert sum(line.kind == "kept" for line in edit.lines) == 4


async def a_request(board: Board, tenant: str, prompt: str) -> str:
    who = Principal(tenant, user("maker"), ROLES)
    await board.engine.jobs.enqueue(who, JobRequest(type="formatted"))
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("w", frozenset({"formatted"})))
    opened = await board.engine.approvals.open(who, RequestApproval(job.id, job.fence, "w", "", prompt))
    assert opened.approval is not None
    return opened.approval.id


async def test_a_request_is_rendered_as_markdown(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = await a_request(board, stage.tenant, HOSTILE)
    page = await opened(board, chromium, f"/approvals/{asked}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Release 2.0")
    assert await page.locator(".markdown table td").all_inner_texts() == ["a", "ok"]
    assert await page.locator(".markdown a").all_inner_texts() == ["staging", "picture"]
    assert await page.locator(".markdown :is(img, script)").count() == 0
    assert await page.evaluate("window.xss") is None
    await page.get_by_text("Text as sent").click()
    assert await page.locator("#as-sent pre").inner_text() == HOSTILE
    await page.goto(f"{board.url}/approvals")
    await expect(page.locator(f"#approval-{asked} .prompt")).to_have_text("Release 2.0")


async def test_an_edited_field_shows_what_was_proposed(board: Board, stage: Scene, chromium: Browser) -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}, "n": {"type": "integer"}}}
    asked = await an_approval(board, stage.tenant, schema, {"title": "Tides", "n": 3})
    page = await opened(board, chromium, f"/approvals/{asked}")
    await page.get_by_label("title").fill("Moon")
    await expect(page.locator(".proposed")).to_have_text("proposed: Tides")
    await page.locator("[name='data.n']").fill("4")
    await expect(page.locator(".proposed")).to_have_count(2)
    await page.get_by_label("title").fill("Tides")
    await expect(page.locator(".proposed")).to_have_text("proposed: 3")
    await follow(page.get_by_role("button", name="Approve"))
    await page.goto(f"{board.url}/approvals/{asked}")
    assert [await page.locator(f".diff {tag}").all_inner_texts() for tag in ("del", "ins")] == [["3"], ["4"]]


async def test_the_link_to_copy_is_a_whole_address(board: Board, stage: Scene, chromium: Browser) -> None:
    asked = await a_request(board, stage.tenant, "By link?")
    page = await opened(board, chromium, f"/approvals/{asked}", java_script_enabled=False)
    await page.get_by_role("button", name="Create link").click()
    link = await page.locator("code.secret").inner_text()
    assert link.startswith(f"{board.url}/approve#")
    await page.goto(link)
    assert await page.get_by_role("heading", level=1).inner_text() == "Approval"
