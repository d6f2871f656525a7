"""An independent reading of RFC 8259, one character at a time, that lists offences in document order."""

from __future__ import annotations

import re

from interlock.domain.json_text import MAX_DEPTH
from interlock.errors import Error, Invalid, Malformed


class NotJson(Exception):
    """The oracle's syntax error."""


class Oracle:
    def __init__(self, text: str) -> None:
        self.text, self.at, self.depth = text, 0, 0
        self.offences: list[tuple[type[Error], str]] = []
        self.lone: list[int] = []  # which of the offences are surrogates
        self.replaced: list[int] = []  # and which are equal keys that replaced surrogates can have led to

    def verdict(self, *, sanitizing: bool = False) -> tuple[type[Error], str] | None:
        try:
            self.space()
            self.value("")
            self.space()
            if self.at != len(self.text):
                raise NotJson
        except NotJson:
            return Malformed, ""
        for index, (kind, pointer) in enumerate(self.offences):
            if not (sanitizing and (index in self.lone or index in self.replaced)):
                return kind, re.sub("[\ud800-\udfff]", "\ufffd", pointer)
        return None

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def space(self) -> None:
        while self.peek() and self.peek() in " \t\n\r":
            self.at += 1

    def take(self, token: str) -> bool:
        found = self.text.startswith(token, self.at)
        self.at += len(token) * found
        return found

    def need(self, token: str) -> None:
        if not self.take(token):
            raise NotJson

    def value(self, pointer: str) -> None:
        if self.take("{"):
            self.container("}", pointer, is_object=True)
        elif self.take("["):
            self.container("]", pointer, is_object=False)
        elif self.peek() == '"':
            self.note(self.string(), pointer)
        elif any(self.take(word) for word in ("NaN", "Infinity", "-Infinity")):
            self.offences.append((Malformed, pointer))
        elif not any(self.take(word) for word in ("true", "false", "null")):
            self.number()

    def container(self, end: str, pointer: str, *, is_object: bool) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise NotJson
        keys: list[str] = []
        index = 0
        self.space()
        if not self.take(end):
            while True:
                self.space()
                step = str(index)
                if is_object:
                    step = self.string()
                inner = f"{pointer}/" + step.replace("~", "~0").replace("/", "~1")
                if is_object:
                    if step in keys:
                        if "\ufffd" in step:
                            self.replaced.append(len(self.offences))
                        self.offences.append((Malformed, inner))
                    keys.append(step)
                    self.note(step, inner)
                    self.space()
                    self.need(":")
                    self.space()
                self.value(inner)
                self.space()
                index += 1
                if self.take(end):
                    break
                self.need(",")
        self.depth -= 1

    def note(self, value: str, pointer: str) -> None:
        if any(0xD800 <= ord(char) <= 0xDFFF for char in value):
            self.lone.append(len(self.offences))
            self.offences.append((Invalid, pointer))

    def string(self) -> str:
        self.need('"')
        out: list[str] = []
        while not self.take('"'):
            char = self.peek()
            if char == "" or ord(char) < 0x20:
                raise NotJson
            self.at += 1
            if char != "\\":
                out.append(char)
            elif self.take("u"):
                unit = self.hex4()
                if 0xD800 <= unit < 0xDC00 and self.text[self.at : self.at + 2] == "\\u":
                    before = self.at
                    self.at += 2
                    second = self.hex4()
                    if 0xDC00 <= second < 0xE000:
                        unit = 0x10000 + (unit - 0xD800) * 0x400 + second - 0xDC00
                    else:
                        self.at = before
                out.append(chr(unit))
            else:
                escape = self.peek()
                if escape == "" or escape not in '"\\/bfnrt':
                    raise NotJson
                self.at += 1
                out.append({"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}.get(escape, escape))
        return "".join(out)

    def hex4(self) -> int:
        digits = self.text[self.at : self.at + 4]
        if len(digits) < 4 or any(digit not in "0123456789abcdefABCDEF" for digit in digits):
            raise NotJson
        self.at += 4
        return int(digits, 16)

    def digits(self) -> str:
        start = self.at
        while self.peek() and self.peek() in "0123456789":
            self.at += 1
        if start == self.at:
            raise NotJson
        return self.text[start : self.at]

    def number(self) -> None:
        self.take("-")
        if not self.take("0"):
            self.digits()
        if self.take("."):
            self.digits()
        if self.take("e") or self.take("E"):
            if not self.take("+"):
                self.take("-")
            self.digits()
