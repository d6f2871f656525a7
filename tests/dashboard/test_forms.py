"""Forms made from schemas: every kind of value has its field, and comes back as the JSON that it means."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.async_api import Browser

from interlock.dashboard import forms
from interlock.dashboard.http import Fields
from interlock.domain.approval import ApprovalStatus, RequestApproval
from interlock.domain.policy import ClaimFilter
from interlock.domain.principal import local
from interlock.errors import Invalid
from interlock.wire import JobRequest
from tests.dashboard.conftest import Board, follow, patient
from tests.dashboard.scene import Scene

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


def test_a_submitted_form_becomes_json_of_the_right_types() -> None:
    filled = {"data.name": 'a "b"\r\nc', "data.n": "12345678901234567890", "data.x": "1.50", "data.ok": "true"}
    text = forms.data(SCHEMA, Fields(urlencode(filled | {"data.size": "2", "data.list": "[1, 2]"})))
    assert (
        text == '{"name": "a \\"b\\"\\nc", "n": 12345678901234567890, "x": 1.50, "ok": true, "size": 2, "list": [1, 2]}'
    )


def test_an_empty_optional_field_is_omitted() -> None:
    text = forms.data(SCHEMA, Fields("data.name=tides&data.n=&data.list="))
    assert json.loads(text or "") == {"name": "tides", "ok": False}


REQUIRED = [
    {"type": "string"},
    {"type": "string", "minLength": 0},
    {"type": "string", "maxLength": 4000},
    {"type": "string", "format": "date"},
    {"type": "integer"},
    {"type": "number"},
    {"enum": ["a", "b"]},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer"}},
    {"type": "array", "items": {"enum": ["a", "b"]}},
    {"type": "array"},
    {"type": "object"},
    {},
]


@pytest.mark.parametrize("sent", ["", "   ", "\r\n \t", None])
@pytest.mark.parametrize("rule", REQUIRED)
def test_an_empty_required_field_is_rejected(rule: dict[str, Any], sent: str | None) -> None:
    with pytest.raises(Invalid, match="required: ") as rejected:
        sent_for(rule, *(() if sent is None else (sent,)))
    assert [fault.pointer for fault in rejected.value.faults] == ["/data/it"]


def test_every_empty_required_field_gets_its_own_error() -> None:
    inner = {
        "type": "object",
        "required": ["name", "floor"],
        "properties": {"name": {"type": "string"}, "floor": {"type": "integer"}},
    }
    schema = {"required": ["to", "title"], "properties": {"to": inner, "copy": inner, "title": {"type": "string"}}}
    form = Fields(urlencode({"data.to.name": " ", "data.to.floor": "", "data.copy.floor": "3", "data.title": ""}))
    with pytest.raises(Invalid) as rejected:
        forms.data(json.dumps(schema), form)
    pointers = [fault.pointer for fault in rejected.value.faults]
    assert pointers == ["/data/to/name", "/data/to/floor", "/data/copy/name", "/data/title"]
    errors, others = forms.errors_by_pointer(forms.inputs(json.dumps(schema), None), rejected.value)
    to, copy, title = forms.with_submitted(forms.inputs(json.dumps(schema), None), form, errors)
    assert [bool(field.error) for field in (*to.fields, *copy.fields, title)] == [True, True, True, False, True]
    assert (copy.fields[1].value, others) == ("3", [])


def test_an_empty_proposal_may_stay_empty() -> None:
    schema = json.dumps({"properties": {"it": {"type": "string"}}, "required": ["it"]})
    assert json.loads(forms.data(schema, Fields("data.it="), '{"it": ""}') or "") == {"it": ""}


@pytest.mark.parametrize("sent", ["data.n=1%7D", "data.x=NaN", "data.size=%22other%22"])
def test_a_field_cannot_inject_another_type(sent: str) -> None:
    with pytest.raises(Invalid):
        forms.data(SCHEMA, Fields(sent))


def test_a_form_is_filled_with_the_proposal() -> None:
    fields = forms.inputs(SCHEMA, json.dumps({"name": "tides", "size": "s", "list": [1]}))
    assert [field.value for field in fields] == ["tides", "", "", "", '"s"', "[\n  1\n]"]


def test_a_rejected_form_is_returned_as_submitted() -> None:
    fields = forms.with_submitted(forms.inputs(SCHEMA, None), Fields("data.name=tides&data.n=many&data.ok=true"))
    assert [field.value for field in fields] == ["tides", "many", "", "true", "", ""]


def test_a_value_without_a_matching_field_is_entered_as_json() -> None:
    assert [field.kind for field in forms.inputs('{"type": "array"}', None)] == ["json"]
    assert forms.data('{"type": "array"}', Fields("data=%5B1%5D")) == "[1]"
    assert forms.inputs(None, None) == []


def field_of(rule: dict[str, Any], proposed: object = None, *, required: bool = True) -> forms.Input:
    """The field of a value that is called `it`."""
    schema = {"properties": {"it": rule}, "required": ["it"] if required else []}
    (field,) = forms.inputs(json.dumps(schema), None if proposed is None else json.dumps({"it": proposed}))
    return field


def sent_for(rule: dict[str, Any], *sent: str, required: bool = True) -> object:
    """What a value that is called `it` becomes; ... if it is left out."""
    schema = json.dumps({"properties": {"it": rule}, "required": ["it"] if required else []})
    text = forms.data(schema, Fields(urlencode([("data.it", one) for one in sent])))
    return json.loads(text or "").get("it", ...)


OPTIONAL_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}]}
LEVELS = {"oneOf": [{"const": 1, "title": "low"}, {"const": 2, "title": "high"}]}


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ({"type": "string"}, "text"),
        ({"type": ["string", "null"]}, "text"),
        (OPTIONAL_TEXT, "text"),
        ({"allOf": [{"type": "integer"}], "description": "how many"}, "integer"),
        ({"const": "article"}, "choice"),
        (LEVELS, "choice"),
        ({"type": ["boolean", "null"]}, "choice"),
        ({"type": "array", "items": {"type": "string"}}, "lines"),
        ({"type": "array", "items": {"type": "number"}}, "lines"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, "several"),
        ({"type": "array", "items": {"type": "object"}}, "json"),
        ({"type": "object"}, "json"),
        ({"type": ["string", "integer"]}, "json"),
        ({"type": "object", "properties": {"name": {"type": "string"}}}, "group"),
        ({"$ref": "#/nowhere"}, "json"),
        ({"$ref": "https://elsewhere.example/schema"}, "json"),
    ],
)
def test_every_kind_of_value_has_its_field(rule: dict[str, Any], kind: str) -> None:
    assert field_of(rule).kind == kind


@pytest.mark.parametrize(
    ("rule", "sent", "value"),
    [
        ({"type": ["integer", "null"]}, "", None),
        (OPTIONAL_TEXT, "", None),
        (OPTIONAL_TEXT, "x", "x"),
        (LEVELS, "2", 2),
        ({"type": "array", "items": {"type": "string"}}, " a \r\n\r\nb c", ["a", "b c"]),
        ({"type": "array", "items": {"type": "integer"}}, "1\n20", [1, 20]),
        ({"type": ["boolean", "null"]}, "false", False),
        ({"type": "object"}, ' {"a": [1.50]}', {"a": [1.5]}),
    ],
)
def test_submitted_text_becomes_the_typed_value(rule: dict[str, Any], sent: str, value: object) -> None:
    assert sent_for(rule, sent) == value


def test_several_checked_boxes_are_a_list() -> None:
    rule = {"type": "array", "items": {"enum": ["a", "b", 3]}}
    assert sent_for(rule, '"a"', "3") == ["a", 3]
    assert sent_for(rule, required=False) is ...
    assert field_of(rule, ["b", 3]).value == '"b"\n3'


@pytest.mark.parametrize("sent", ["1, 2", "{", '{"a": 1}}'])
def test_invalid_json_is_rejected_with_the_pointer_of_its_field(sent: str) -> None:
    with pytest.raises(Invalid, match="invalid JSON") as rejected:
        sent_for({"type": "object"}, sent)
    assert rejected.value.pointer == "/data/it"


def test_no_choice_is_preselected() -> None:
    rule = {"enum": ["staging", "production"]}
    assert field_of(rule).needs_choice
    assert not field_of(rule, "production").needs_choice
    assert not field_of({"const": "article"}).needs_choice


def test_limits_are_shown_and_enforced_by_the_browser_too() -> None:
    field = field_of({"type": "integer", "minimum": 1, "maximum": 9, "description": "How many."})
    assert (dict(field.bounds), field.hint) == ({"min": 1, "max": 9}, "How many. From 1 to 9.")
    assert dict(field_of({"type": "string", "minLength": 3, "maxLength": 8}).bounds) == {"minlength": 3, "maxlength": 8}


def test_a_proposed_number_is_shown_as_written() -> None:
    schema = json.dumps({"properties": {"amount": {"type": "number"}}})
    (field,) = forms.inputs(schema, '{"amount": 12345678901234567.80}')
    assert field.value == "12345678901234567.80"


def test_a_proposal_that_does_not_fit_a_text_field_is_json() -> None:
    rule = {"type": "array", "items": {"type": "string"}}
    assert field_of(rule, ["a", "b"]).value == "a\nb"
    assert field_of(rule, ["a\nb"]).kind == "json"
    part = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert field_of(part, {"a": "x", "more": 1}).kind == "json"


NESTED = json.dumps(
    {
        "$ref": "#/$defs/Letter",
        "$defs": {
            "Letter": {
                "type": "object",
                "required": ["to"],
                "properties": {"to": {"$ref": "#/$defs/Person"}, "copy": {"$ref": "#/$defs/Person"}, "a.b": {"type": "string"}},
            },
            "Person": {
                "type": "object",
                "title": "Person",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "mail": {"type": "boolean"}, "knows": {"$ref": "#/$defs/Person"}},
            },
        },
    }
)  # fmt: skip


def test_a_nested_object_is_a_part_of_the_form_and_omitted_if_empty() -> None:
    filled = {
        "data.to.name": "Ada",
        "data.to.mail": "true",
        "data.copy.name": "",
        "data.copy.mail": "",
        "data.a.b": "x",
    }
    text = forms.data(NESTED, Fields(urlencode(filled)))
    assert json.loads(text or "") == {"to": {"name": "Ada", "mail": True}, "a.b": "x"}

    to, *_ = forms.with_submitted(forms.inputs(NESTED, None), Fields(urlencode(filled)))
    assert [field.value for field in to.fields][:2] == ["Ada", "true"]


def test_parts_with_ambiguous_names_are_json() -> None:
    text = {"type": "string"}
    ambiguous = {"properties": {"a.b": text, "a": {"type": "object", "properties": {"b": text}}}}
    assert [field.kind for field in forms.inputs(json.dumps(ambiguous), None)] == ["json"]


def test_a_recursive_schema_ends() -> None:
    circle = {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "properties": {"x": {"$ref": "#/$defs/a"}},
    }
    assert [field.kind for field in forms.inputs(json.dumps(circle), None)] == ["json"]
    assert forms.inputs(NESTED, json.dumps({"to": {"name": "Ada"}}))[0].fields[0].value == "Ada"


@pytest.mark.parametrize(
    ("schema", "proposed", "value"),
    [
        ({"type": "integer"}, 3, "3"),
        ({"type": "integer", "default": 7}, {"not": "a number"}, "7"),
        ({"type": "array", "items": {"type": "object"}}, [{"a": 1}], '[\n  {\n    "a": 1\n  }\n]'),
        ({"type": "array", "items": {"type": "object"}}, {"why": "it is done"}, ""),
    ],
)
def test_a_schema_of_one_value_is_filled_with_a_matching_proposal(
    schema: dict[str, Any], proposed: object, value: str
) -> None:
    (field,) = forms.inputs(json.dumps(schema), json.dumps(proposed))
    assert (field.name, field.value) == ("data", value)


async def an_approval(board: Board, tenant: str, schema: object, details: object) -> str:
    """A job that asks for data of this shape."""
    await board.engine.jobs.enqueue(local(tenant), JobRequest(type="write"))
    (job,) = await board.engine.leases.claim(tenant, ClaimFilter("gpu", frozenset({"write"})))
    order = RequestApproval(
        job.id, job.fence, "gpu", "", "Send it?", details=json.dumps(details), schema=json.dumps(schema)
    )
    opened = await board.engine.approvals.open(local(tenant), order)
    assert opened.approval is not None
    return opened.approval.id


async def test_a_nested_form_is_submitted_and_approved(board: Board, stage: Scene, chromium: Browser) -> None:
    schema = {
        "type": "object",
        "required": ["to", "level", "tags"],
        "properties": {
            "to": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "minLength": 1}}},
            "level": LEVELS,
            "tags": {"type": "array", "items": {"type": "string"}},
            "days": {"type": "array", "items": {"enum": ["mon", "tue"]}},
            "copies": {"type": "integer", "maximum": 3},
        },
    }
    approval = await an_approval(board, stage.tenant, schema, {"to": {"name": "Ada"}, "tags": ["tides"], "copies": 2})
    page = await (await patient(chromium, java_script_enabled=False)).new_page()
    await page.goto(f"{board.url}/approvals/{approval}")
    assert await page.get_by_role("group", name="to").get_by_label("name").input_value() == "Ada"
    await page.get_by_label("tags").fill("tides\nmoon")
    await page.get_by_label("tue").check(force=True)
    await page.get_by_label("level").select_option("high")
    await follow(page.get_by_role("button", name="Approve"))

    after = await board.engine.approvals.get(stage.tenant, approval)
    wanted = {"to": {"name": "Ada"}, "level": 2, "tags": ["tides", "moon"], "days": ["tue"], "copies": 2}
    assert (after.status, json.loads(after.data or "")) == (ApprovalStatus.APPROVED, wanted)


async def test_enter_in_a_field_decides_nothing(board: Board, stage: Scene, chromium: Browser) -> None:
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{board.url}/approvals/{stage.approval}")
    await page.get_by_label("audience").select_option("members")
    for field in ("Comment", "Title", "readers"):
        await page.get_by_label(field).press("Enter")
    await page.get_by_label("Comment").fill("still here")
    assert (await board.engine.approvals.get(stage.tenant, stage.approval)).status is ApprovalStatus.OPEN


async def test_a_rejection_names_every_invalid_field(board: Board, stage: Scene, chromium: Browser) -> None:
    counts = {"type": "integer", "minimum": 1}
    schema = {"properties": {"copies": counts, "to": {"type": "object", "properties": {"floor": counts}}}}
    approval = await an_approval(board, stage.tenant, schema, {"copies": 0, "to": {"floor": 0}})
    page = await (await patient(chromium)).new_page()
    await page.goto(f"{board.url}/approvals/{approval}")
    await page.locator("form.decide").evaluate("form => { form.noValidate = true }")
    await follow(page.get_by_role("button", name="Approve"))
    labels = await page.locator(".field.invalid label").all_inner_texts()
    assert [label.split()[0] for label in labels] == ["copies", "floor"]
    assert await page.locator(".field.invalid .error").count() == 2
    assert await page.locator(".field.invalid input").evaluate_all("all => all.map(one => one.value)") == ["0", "0"]
