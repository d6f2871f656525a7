"""Templates: everything that is shown is escaped, and characters that would deceive the eye are spelled out."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from interlock.domain.principal import Principal
from interlock.domain.retry import SECOND

# Control characters, and those that reorder or hide the text around them.
_DECEIVING: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_INSTANT: Final = re.compile(r"\b([0-9]{4}-[0-9]{2}-[0-9]{2})T([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?Z")
_STATIC: Final = {"dashboard.css": "text/css", "dashboard.js": "text/javascript", "icon.svg": "image/svg+xml"}


class File:
    """A file of our own, served under a name that changes with its content."""

    def __init__(self, name: str, media_type: str) -> None:
        self.name, self.media_type = name, f"{media_type}; charset=utf-8"
        self.body = (files("interlock.dashboard") / "static" / name).read_bytes()
        self.url = f"/static/{name}?v={hashlib.sha256(self.body).hexdigest()[:12]}"


class Templates:
    """The pages of this package."""

    def __init__(self) -> None:
        self.files = {name: File(name, media_type) for name, media_type in _STATIC.items()}
        self._jinja = Environment(
            loader=PackageLoader("interlock.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=inert,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._jinja.globals["static"] = {name: file.url for name, file in self.files.items()}
        self._jinja.filters |= {
            "ago": ago, "until": until, "moment": moment, "span": span, "segment": segment, "short": short,
            "words": words, "local": local, "plainly": plainly, "verbatim": verbatim, "amount": amount, "rate": rate,
            "bytes": size,
        }  # fmt: skip

    def page(self, template: str, shown: dict[str, Any]) -> bytes:
        return self._jinja.get_template(template).render(shown).encode("utf-8", "replace")


def inert(value: Any) -> Any:
    """Text as it may be looked at: nothing in it turns the text around it."""
    if value is None:
        return ""
    return spelled_out(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def spelled_out(text: str) -> str:
    """The text with whatever deceives the eye as JSON would escape it, so that JSON still means the same."""
    return _DECEIVING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def verbatim(value: Any) -> Markup:
    """What a form sends back: escaped, else as it is, for whoever gets it must get what was put in."""
    # A browser takes every bare carriage return in a page for the end of a line.
    return escape("" if value is None else value).replace("\r", Markup("&#13;"))


@pass_context
def ago(context: Context, micros: int | None) -> str:
    """How long something has been."""
    if micros is None:
        return "never"
    seconds = (context["now"] - micros) / SECOND
    return "now" if seconds < 1 else f"{span(seconds)} ago"


@pass_context
def until(context: Context, micros: int | None) -> str:
    """How long something will last."""
    if micros is None:
        return "without end"
    seconds = (micros - context["now"]) / SECOND
    return f"in {span(seconds)}" if seconds > 0 else f"{span(-seconds)} ago"


def span(seconds: float) -> str:
    """A length of time in its two largest units at most."""
    whole = int(seconds)
    if whole < 60:
        return f"{max(whole, 0)} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole < 600 and whole % 60 else "")
    if whole < 86_400:
        return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 >= 60 else "")
    return f"{whole // 86_400} d" + (f" {whole % 86_400 // 3600} h" if whole % 86_400 >= 3600 else "")


def moment(micros: int | None) -> str:
    """A point in time, to the second, as everybody reads it; the exact one is beside it."""
    if micros is None:
        return ""
    return datetime.fromtimestamp(micros // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S")


def local(micros: int | None) -> str:
    """A point in time as a browser's own field takes it, to the second."""
    return moment(micros).replace(" ", "T")


def plainly(sentence: str) -> str:
    """A sentence whose times are told to the second, as everybody reads them."""
    return _INSTANT.sub(r"\1 \2 UTC", sentence)


def segment(value: str) -> str:
    """One segment of a path, whatever it is made of."""
    return quote(value, safe="")


def short(id: str) -> str:
    """An id by its end, which differs where the beginning is but the time."""
    return id[-8:]


def words(name: str) -> str:
    return str(name).replace("_", " ")


def amount(count: float) -> str:
    """A count with thin gaps between thousands."""
    return f"{round(count):,}".replace(",", "\u2009")


def rate(per_minute: float) -> str:
    return "0" if per_minute < 0.05 else f"{per_minute:.1f}" if per_minute < 10 else amount(per_minute)


def size(count: int | None) -> str:
    if count is None:
        return ""
    if count < 1024:
        return f"{count} B"
    return f"{count / 1024:.1f} KiB" if count < 1024 * 1024 else f"{count / 1024 / 1024:.1f} MiB"


def may_look(who: Principal) -> dict[str, bool]:
    """What somebody may do, for the templates."""
    return {role: who.may(role) for role in ("read", "produce", "operate", "approve", "admin")}
