"""The words of the field, one word per idea: private words are counted, and the count may only fall."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "interlock"
# The glossary and decision 0014 replace these. What is left of them are quotations and words of other protocols.
WORDS: Final = re.compile(
    r"""\b(?:told|tells?|telling|said|saying|whoever|whatever|wherever|whichever|nobody|somebody|everybody|anybody
    |gates?|chores?|upkeep|mend(?:s|ed|ing)?|born|births?|twins?|ballots?|crew|sightings?|stragglers?|setbacks?
    |signs?\ of\ life|(?:go|goes|going|went)\ on|under\ way|for\ good|for\ ever|otherwise\ than|so\ (?:many|often)
    |(?:runs?|ran)\ out(?!\ of)|hand(?:s|ed|ing)?(?:\ \w+)?\ (?:out|back)|however\ (?:many|often|much|long))\b""",
    re.IGNORECASE | re.VERBOSE,
)
MOST_IN_TEXTS: Final = 20
MOST_IN_COMMENTS: Final = 100
LONGEST_LINE: Final = 100


def pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    yield from (page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "glossary.md")


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a page that are neither code nor part of a table."""
    fenced = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and not line.lstrip().startswith("|"):
            yield number, line


def strings_and_comments(module: Path) -> tuple[str, str]:
    """Return the text literals of a module, and its comments and docstrings."""
    text = module.read_text()
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, documented)]
    literals = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    spoken = "\n".join(literal for literal in literals if " " in literal and literal.strip() not in docs)
    comments = [t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT]
    return spoken, "\n".join([*docs, *comments])


def test_user_visible_texts_use_the_words_of_the_field() -> None:
    found = [f"{page.name}: {word}" for page in pages() for word in WORDS.findall(page.read_text())]
    for module in sorted(SOURCE.rglob("*.py")):
        found += [f"{module.relative_to(SOURCE)}: {word}" for word in WORDS.findall(strings_and_comments(module)[0])]
    for template in sorted(SOURCE.rglob("*.html")):
        found += [f"{template.name}: {word}" for word in WORDS.findall(template.read_text())]
    assert len(found) <= MOST_IN_TEXTS, "\n".join(found)


def test_comments_and_docstrings_use_the_words_of_the_field() -> None:
    found = []
    for module in sorted(SOURCE.rglob("*.py")):
        found += [f"{module.relative_to(SOURCE)}: {word}" for word in WORDS.findall(strings_and_comments(module)[1])]
    for script in sorted(SOURCE.rglob("*.sql")):
        comments = "\n".join(re.findall(r"--(.*)", script.read_text()))
        found += [f"{script.relative_to(SOURCE)}: {word}" for word in WORDS.findall(comments)]
    assert len(found) <= MOST_IN_COMMENTS, "\n".join(found)


def test_prose_is_wrapped() -> None:
    long = [f"{p.relative_to(ROOT)}:{n}" for p in pages() for n, line in prose(p) if len(line) > LONGEST_LINE]
    assert long == []
