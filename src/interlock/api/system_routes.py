"""System routes: health, readiness, metrics, the OpenAPI document and its page."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import Any, Final

from interlock.api import metrics, openapi, problems
from interlock.api.problems import Refusal
from interlock.api.routes import Nothing, RequestContext, Response, Route, RouteTable, respond
from interlock.domain.attention import Need
from interlock.wire import responses

routes = RouteTable()

MAX_LIMITS: Final = 100  # and as many budgets, in the metrics


@routes.add("GET", "/healthz", needs_credential=False, answers={200: responses.Health})
async def healthz(call: RequestContext[None, Nothing]) -> Response:
    """Return whether the process responds."""
    return respond({"status": "ok"})


@routes.add("GET", "/readyz", needs_credential=False, answers={200: responses.Readiness})
async def readyz(call: RequestContext[None, Nothing]) -> Response:
    """Return whether the server is ready: the database responds, its schema matches, no shutdown."""
    if call.service.stopping.is_set():
        raise Refusal("stopping", "the service is being stopped")
    return respond(await call.service.readiness())


@routes.add("GET", "/metrics", roles=["operate"], answers={200: None}, produces="text/plain")
async def metrics_text(call: RequestContext[None, Nothing]) -> Response:
    """Return metrics of this process, and of queues, limits, budgets and attention of the caller's tenant."""
    engine, tenant = call.engine, call.who.tenant
    state = metrics.TenantState(
        await engine.queries.queues(tenant),
        await engine.flow.page(tenant, limit=MAX_LIMITS),
        await engine.budgets.page(tenant, limit=MAX_LIMITS),
        {str(need): await engine.attention.count(tenant, need=need) for need in Need},
        await engine.queries.now(),
    )
    engine.utilization.record_limits(tenant, state.limits, state.now)
    engine.utilization.record_budgets(tenant, state.budgets, state.now)
    return Response(200, call.service.metrics.text(state), media_type=metrics.CONTENT_TYPE)


def pages(document: dict[str, Any]) -> list[Route]:
    """Return the routes of the OpenAPI document and its page."""
    made = RouteTable()
    as_json = openapi.encoded(document)
    page = _page(document).encode()

    @made.add("GET", "/openapi.json", needs_credential=False, answers={200: None})
    async def openapi_json(call: RequestContext[None, Nothing]) -> Response:
        """Return the OpenAPI document."""
        return Response(200, as_json)

    @made.add("GET", "/docs", needs_credential=False, answers={200: None})
    async def docs(call: RequestContext[None, Nothing]) -> Response:
        """Return the API documentation page. It loads no external resources."""
        headers = {"content-security-policy": _POLICY}
        return Response(200, page, media_type="text/html; charset=utf-8", headers=headers)

    return made


_STYLE: Final = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8884; padding: .5rem 0; }
code, pre { font: .9em ui-monospace, monospace; }
pre { overflow: auto; padding: .5rem; background: #8881; }
h1, h2, h3, p, td, th, li { overflow-wrap: anywhere; }
table { display: block; max-width: 100%; overflow-x: auto; }
th { text-align: left; padding-right: 1rem; }
.who { opacity: .7; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'; base-uri 'none'"


def _page(document: dict[str, Any]) -> str:
    sections = [
        _section(path, method, operation, document)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    codes = "".join(
        f'<tr id="{code}"><th><code>{code}</code></th><td>{status}</td><td>{escape(given)}</td></tr>'
        for code, (status, given) in sorted(problems.catalogue().items())
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Interlock API</title><style>{_STYLE}</style>'
        f"<h1>Interlock API {escape(document['info']['version'])}</h1>"
        '<p>The same as <a href="/openapi.json">openapi.json</a>, for reading.</p>'
        f"{''.join(sections)}<h2>Codes</h2><table>{codes}</table></html>"
    )


def _section(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    who = " or ".join(operation[openapi.ROLES]) or (
        "no credential" if operation.get("security") == [] else "any credential"
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    fields = ""
    if "$ref" in body:
        schema = document["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        rows = "".join(
            f"<tr><th><code>{escape(name)}</code></th><td>{escape(_kind(field))}"
            f"{'' if name in schema.get('required', ()) else ', optional'}</td></tr>"
            for name, field in schema["properties"].items()
        )
        fields = f"<table>{rows}</table>"
    asked = "".join(
        f" <code>{escape(one['name'])}</code>" for one in operation.get("parameters", ()) if one["in"] == "query"
    )
    return (
        f'<section id="{escape(operation["operationId"])}"><h3><code>{method.upper()} {escape(path)}</code></h3>'
        f'<p>{escape(operation["summary"])} <span class="who">For: {escape(who)}.</span></p>'
        f"{f'<p>Query:{asked}</p>' if asked else ''}{fields}</section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = schema.get("type", "any JSON value" if "anyOf" not in schema else "one of several")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
