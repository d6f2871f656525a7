"""Accessible to all users: contrast in light and dark, and no motion for users who prefer reduced motion."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

SHEET = (files("interlock.dashboard") / "static" / "dashboard.css").read_text()
TEXT, SHAPE = 4.5, 3.0  # what WCAG asks of text, and of what else has to be seen

ON_PAGES = ("ground", "card")
PAIRS = [
    *((text, ground, TEXT) for text in ("text", "faint", "accent", "red") for ground in ON_PAGES),
    *((text, "card", TEXT) for text in ("blue", "amber", "green", "violet")),
    *((name, f"{name}-ground", TEXT) for name in ("blue", "amber", "red", "green", "violet")),
    ("faint", "grey-ground", TEXT),
    ("text", "grey-ground", TEXT),
    ("text", "amber-ground", TEXT),
    ("accent-text", "accent", TEXT),
    *((shape, ground, SHAPE) for shape in ("edge", "accent") for ground in ON_PAGES),
    *((part, "card", SHAPE) for part in ("blue", "accent", "slate", "ochre", "violet", "red")),
]


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


def schemes() -> dict[str, dict[str, str]]:
    light, _, rest = SHEET.partition("@media (prefers-color-scheme: dark)")
    return {"light": colours(light), "dark": colours(rest[: rest.index("\n}\n")])}


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_contrasts_with_its_background(scheme: str) -> None:
    known = schemes()[scheme]
    measured = {(one, other): contrast(known[one], known[other]) for one, other, _ in PAIRS}
    needs = {(one, other): need for one, other, need in reversed(PAIRS)}
    assert {pair: ratio for pair, ratio in measured.items() if ratio < needs[pair]} == {}


def test_both_color_schemes_define_the_same_colors() -> None:
    known = schemes()
    assert known["light"].keys() == known["dark"].keys()
    outside = SHEET[SHEET.index("* { box-sizing") :]
    assert re.findall(r"#[0-9a-f]{3,8}\b", outside) == []


def test_reduced_motion_disables_animations() -> None:
    moving = re.compile(r"(transition|animation|scroll-behavior): (?!none)")
    allowed = SHEET[SHEET.index("@media (prefers-reduced-motion: no-preference)") :]
    allowed = allowed[: allowed.index("\n}\n")]
    assert moving.search(SHEET.replace(allowed, "")) is None
    assert moving.search(allowed) is not None
