"""Templates: all values are HTML-escaped, and control and invisible characters are written as escapes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from interlock.dashboard.control_characters import escape_control
from interlock.dashboard.markdown import headline
from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND

_INSTANT: Final = re.compile(r"\b([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?Z")
_TRACEPARENT: Final = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-")
_CODE_NAMES: Final = frozenset(
    {"code", "diff", "output", "patch", "stack", "stack_trace", "stacktrace", "stderr", "stdout", "trace", "traceback"}
)
_STATIC: Final = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


class File:
    """A static file; its URL changes with its content."""

    def __init__(self, name: str, media_type: str) -> None:
        self.name, self.media_type = name, f"{media_type}; charset=utf-8"
        self.body = (files("interlock.dashboard") / "static" / name).read_bytes()
        self.url = f"/static/{name}?v={hashlib.sha256(self.body).hexdigest()[:12]}"


class Templates:
    """The templates and static files of the dashboard."""

    def __init__(self) -> None:
        self.files = {name: File(name, media_type) for name, media_type in _STATIC.items()}
        self._jinja = Environment(
            loader=PackageLoader("interlock.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=printable,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.globals["static"] = {name: file.url for name, file in self.files.items()}
        self._jinja.filters |= {
            "ago": ago, "until": until, "moment": moment, "span": span, "segment": segment, "short": short,
            "words": words, "local": local, "short_times": short_times, "verbatim": verbatim, "amount": amount,
            "rate": rate, "quantity": quantity, "amounts": amounts, "quantity_field": quantity_field,
            "bytes": size, "is_code": is_code,
            "named": named, "took": took, "trace_id": trace_id, "headline": headline,
        }  # fmt: skip

    def page(self, template: str, context: dict[str, Any]) -> bytes:
        return self._jinja.get_template(template).render(context).encode("utf-8", "replace")


def printable(value: Any) -> Any:
    """Return a value for display: text without characters that hide or reorder the text around them."""
    if value is None:
        return ""
    return escape_control(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def verbatim(value: Any) -> Markup:
    """Return a form value: HTML-escaped and otherwise unchanged, since the browser sends it back."""
    # Browsers turn a bare carriage return in a page into a newline.
    return escape("" if value is None else value).replace("\r", Markup("&#13;"))


@pass_context
def ago(context: Context, micros: int | None) -> str:
    """Return the time since a moment."""
    if micros is None:
        return "never"
    seconds = (context["now"] - micros) / SECOND
    return "now" if seconds < 1 else f"{span(seconds)} ago"


@pass_context
def until(context: Context, micros: int | None) -> str:
    """Return the time until a moment."""
    if micros is None:
        return "never"
    seconds = (micros - context["now"]) / SECOND
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


@pass_context
def named(context: Context, actor: str | None) -> str:
    """Return an actor, after the name of the person if it has one: a name alone does not identify anyone."""
    person = context["people"].get(actor)
    known = None if person is None else person.name or person.email
    return actor or "" if known is None else f"{known} ({actor})"


def span(seconds: float) -> str:
    """Return a duration in at most its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{max(whole, 0)} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 and whole % 60 else "")
    if whole < 86_400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86_400} d" + (f" {whole % 86_400 // 3600} h" if whole % 86_400 >= 3600 else "")


def took(micros: int) -> str:
    """Return a measured duration; short ones in milliseconds."""
    if micros < SECOND:
        return f"{max(micros, 0) // 1000} ms"
    return f"{micros / SECOND:.1f} s" if micros < 10 * SECOND else span(micros / SECOND)


def moment(micros: int | None) -> str:
    """Return a moment to the second, in UTC."""
    if micros is None:
        return ""
    return datetime.fromtimestamp(micros // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")


def local(micros: int | None) -> str:
    """Return a moment as the value of a datetime-local input."""
    return moment(micros).replace(" ", "T")


def short_times(sentence: str) -> str:
    """Shorten the timestamps in a sentence to seconds."""
    return _INSTANT.sub(r"\1 \2 UTC", sentence)


def segment(value: str) -> str:
    """Quote a value for use as one path segment."""
    return quote(value, safe="")


def short(id: str) -> str:
    """Return the end of an id; its beginning is a timestamp that neighbors share."""
    return id[-8:]


def trace_id(traceparent: str | None) -> str:
    """Return the trace ID of a W3C trace context; empty without one."""
    found = _TRACEPARENT.match(traceparent or "")
    return "" if found is None else found[1]


def words(name: str) -> str:
    return str(name).replace("_", " ")


def amount(count: float) -> str:
    """Return a count with thin spaces between thousands."""
    return f"{round(count):,}".replace(",", "\u2009")


def quantity(value: float) -> str:
    """Return an amount of a unit: whole numbers as counts, others to two decimals."""
    return amount(value) if value == round(value) or abs(value) >= 1000 else f"{value:.2f}"


def amounts(values: Mapping[str, float]) -> str:
    """Return amounts as a form field takes them."""
    return ", ".join(f"{name}={quantity_field(value)}" for name, value in values.items())


def quantity_field(value: float | None) -> str:
    """Return a number as a form field takes it."""
    return "" if value is None else str(int(value) if value == int(value) else value)


def rate(per_minute: float) -> str:
    return "0" if per_minute < 0.05 else f"{per_minute:.1f}" if per_minute < 10 else amount(per_minute)


def is_code(text: str, name: str | None = None) -> bool:
    """Return whether a text of several lines is a traceback, program output or code, to be set in a monospace font."""
    lines = text.splitlines()
    if len(lines) < 2:
        return False
    indented = sum(line.startswith((" ", "\t")) for line in lines)
    return (
        (name or "").lower() in _CODE_NAMES or "Traceback (most recent call last)" in text or indented * 2 >= len(lines)
    )


def size(count: int | None) -> str:
    if count is None:
        return ""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def permissions(who: Principal) -> dict[str, bool]:
    """Return the caller's roles for templates."""
    return {role: who.may(role) for role in ("read", "produce", "operate", "approve", "admin")}
