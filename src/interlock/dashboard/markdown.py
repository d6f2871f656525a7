"""Markdown of approval requests as HTML: nothing of the text becomes markup of the page, and nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from interlock.dashboard.control_characters import escape_control

MAX_LENGTH: Final = 8 * 1024  # a longer text is displayed as it is: the time to parse one grows with its square
SIDES: Final = frozenset({"left", "center", "right"})
SCHEMES: Final = frozenset({"http", "https", "mailto"})
_HEADING_SHIFT: Final = 2  # the page has its own h1, its sections h2


class Request(NamedTuple):
    """The text of an approval request: the heading of its page and what follows it, both as HTML."""

    heading: Markup
    body: Markup | None
    is_formatted: bool  # whether the text as sent looks different


def _parser() -> MarkdownIt:
    """A parser without HTML, images and references: approvers see everything that the digest covers."""
    made = MarkdownIt("js-default", {"html": False, "linkify": False, "typographer": False, "breaks": True})
    made.disable(["image", "reference", "html_block", "html_inline"])
    made.validateLink = _is_allowed  # type: ignore[method-assign]
    made.add_render_rule("link_open", _link_open)
    made.add_render_rule("link_close", _link_close)
    made.add_render_rule("heading_open", _heading)
    made.add_render_rule("heading_close", _heading)
    made.add_render_rule("th_open", _cell)
    made.add_render_rule("td_open", _cell)
    return made


def _is_allowed(url: str) -> bool:
    try:
        return urlsplit(url.strip()).scheme.lower() in SCHEMES
    except ValueError:
        return False


def _link_open(_: object, tokens: list[Token], at: int, options: object, env: dict[str, list[str]]) -> str:
    url = str(tokens[at].attrGet("href") or "")
    text = "".join(token.content for token in tokens[at + 1 : _end(tokens, at)])
    env.setdefault("targets", []).append("" if text in (url, url.removeprefix("mailto:")) else url)
    return str(Markup('<a href="{}" rel="noopener noreferrer nofollow" target="_blank">').format(url))


def _link_close(_: object, tokens: list[Token], at: int, options: object, env: dict[str, list[str]]) -> str:
    """Show where a link leads: its text may name another place."""
    target = env["targets"].pop()
    return "</a>" + (str(Markup(' <span class="faint">({})</span>').format(target)) if target else "")


def _heading(_: object, tokens: list[Token], at: int, options: object, env: object) -> str:
    level = min(int(tokens[at].tag[1:]) + _HEADING_SHIFT, 6)
    return f"<{'/' if tokens[at].nesting < 0 else ''}h{level}>"


def _cell(_: object, tokens: list[Token], at: int, options: object, env: object) -> str:
    """Align a cell by a class: the content security policy allows no inline style."""
    side = str(tokens[at].attrGet("style") or "").removeprefix("text-align:")
    return f'<{tokens[at].tag} class="is-{side}">' if side in SIDES else f"<{tokens[at].tag}>"


def _end(tokens: list[Token], at: int) -> int:
    return next(i for i in range(at, len(tokens)) if tokens[i].type == "link_close")


_MARKDOWN: Final = _parser()


def request(text: str) -> Request:
    """Return the text of a request: a title line becomes the heading of the page."""
    if len(text) > MAX_LENGTH:
        return Request(escape(escape_control(text)), None, False)
    sent = escape_control(text)
    title, body = _split(sent)
    heading = Markup(_MARKDOWN.renderInline(title, {}))
    return Request(heading, Markup(_MARKDOWN.render(body, {})) if body else None, heading != escape(sent))


def headline(text: str) -> str:
    """Return the first line of a request without Markdown, for lists."""
    if len(text) > MAX_LENGTH:
        return text.partition("\n")[0]
    title, _ = _split(text)
    return "".join(_words(_MARKDOWN.parseInline(title, {}))).strip() or title


def note(details: str | None) -> Markup | None:
    """Return details that are one text as HTML; None for all others."""
    if details is None or not details.startswith('"') or len(details) > MAX_LENGTH:
        return None
    return Markup(_MARKDOWN.render(escape_control(json.loads(details)), {}))


def _split(text: str) -> tuple[str, str]:
    """Return the title line and the rest; a text that does not begin with a title line is all title or all rest."""
    lines = text.strip("\n").split("\n")
    first, rest = lines[0], "\n".join(lines[1:])
    opens = next((token.type for token in _MARKDOWN.parse(first, {})), "paragraph_open")
    if opens == "heading_open":
        return first.lstrip("# ").rstrip("# ") or first, rest.strip("\n")
    if opens == "paragraph_open":
        return (first, rest.strip("\n")) if not rest or not lines[1].strip() else _sentence(first, rest)
    return "Request", "\n".join(lines)


def _sentence(first: str, rest: str) -> tuple[str, str]:
    """A line that a table, list or paragraph continues is still the first thing to read."""
    is_setext = rest.lstrip().startswith(("---", "===")) and not rest.lstrip("-=").partition("\n")[0].strip()
    return first, (rest.partition("\n")[2] if is_setext else rest).strip("\n")


def _words(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        if token.children is not None:
            yield from _words(token.children)
        else:
            yield " " if token.type in ("softbreak", "hardbreak") else token.content
