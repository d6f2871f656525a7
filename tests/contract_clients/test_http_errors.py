"""Errors that crossed a wire: the class of their code, with every attribute that class has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from interlock import errors
from interlock.api import problems
from interlock.client.codec import problem, rebuilt
from interlock.errors import Error, Fatal, Unavailable

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, Error) and not issubclass(kind, Fatal) and "code" in vars(kind)
]
SHARED = [errors.AgentInUse, errors.LimitInUse]  # classes that share the code of their base


def sample(kind: type[Error]) -> Error:
    """An error as the engine raises it."""
    given: dict[str, Any] = {}
    own = kind.__init__ is not Exception.__init__
    for name, parameter in inspect.signature(kind).parameters.items() if own else ():
        if parameter.kind is not parameter.KEYWORD_ONLY and parameter.kind is not parameter.VAR_POSITIONAL:
            given[name] = 7 if parameter.annotation == "int" else f"the {name}"
    return kind(**given) if own else kind("a sentence")


@pytest.mark.parametrize("kind", [*KINDS, *SHARED], ids=lambda kind: kind.__name__)
def test_an_error_is_rebuilt_with_its_class_message_and_attributes(kind: type[Error]) -> None:
    raised = sample(kind)
    came = rebuilt(problem(problems.encoded(raised)), problems.status_of(raised), {})
    assert type(came) is kind
    # A storage error may name files and hosts, which stay in the log of the server.
    assert str(came) == (raised.public if isinstance(raised, Unavailable) else str(raised))
    assert vars(came) == {name: value for name, value in vars(raised).items() if name != "public"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.code)
def test_attributes_missing_in_the_response_come_from_the_request(kind: type[Error]) -> None:
    known = {"job_id": "j", "fence": 3}
    came = rebuilt({"code": kind.code}, kind.status, known)
    assert {name: value for name, value in vars(came).items() if name in known} == {
        name: value for name, value in known.items() if name in vars(came)
    }


def test_attributes_of_the_response_win_over_those_of_the_request() -> None:
    came = rebuilt({"code": "lease_lost", "detail": "gone", "job_id": "theirs"}, 409, {"job_id": "ours", "fence": 1})
    assert isinstance(came, errors.LeaseLost)
    assert (came.job_id, came.fence) == ("theirs", 1)


def test_a_not_found_error_names_the_kind_of_resource() -> None:
    raised = errors.NotFound("planner/one", resource="agent")
    given = problem(problems.encoded(raised))
    assert (given["what"], given["id"], "job_id" in given) == ("agent", "planner/one", False)
    assert vars(rebuilt(given, 404, {})) == vars(raised)
    job = errors.NotFound("j1")
    given = problem(problems.encoded(job))
    assert (given["what"], given["job_id"], "id" in given, "resource" in given) == ("job", "j1", False, False)
    assert vars(rebuilt(given, 404, {"job_id": "ours"})) == vars(job)
    assert vars(rebuilt({"code": "not_found"}, 404, {"job_id": "j1"})) == vars(job), "named by the request"


def test_an_invalid_field_keeps_its_pointer() -> None:
    raised = errors.Invalid("must be less", pointer="/jobs/3/priority")
    came = rebuilt(problem(problems.encoded(raised)), 422, {})
    assert isinstance(came, errors.Invalid)
    assert came.faults == raised.faults
    malformed = errors.Malformed("twice", pointer="/payload/a")
    came = rebuilt(problem(problems.encoded(malformed)), 400, {})
    assert isinstance(came, errors.Malformed)
    assert came.pointer == "/payload/a"


@pytest.mark.parametrize("kind", [errors.StorageBroken, errors.SchemaMismatch])
def test_an_error_that_stops_a_server_does_not_stop_its_clients(kind: type[Error]) -> None:
    assert type(rebuilt(problem(problems.encoded(kind("down"))), 503, {})) is Unavailable


def test_an_unknown_code_and_an_unknown_format_are_errors() -> None:
    assert type(rebuilt({"code": "new"}, 409, {})) is Error
    assert type(rebuilt(problem(b"<html>"), 404, {})) is Error
    assert type(rebuilt(problem(b"[]"), 502, {})) is Unavailable
    assert type(rebuilt({"code": "invalid", "errors": "odd"}, 422, {})) is errors.Invalid
