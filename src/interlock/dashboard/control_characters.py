"""Characters that hide or reorder the text around them."""

from __future__ import annotations

import re
from typing import Final

# Control characters, and those that reorder or hide the text around them.
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def escape_control(text: str) -> str:
    """Replace control and invisible characters by their JSON escapes; JSON text keeps its meaning."""
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
