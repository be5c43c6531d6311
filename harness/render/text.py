"""Text that torch or a program wrote, made safe to show; every renderer goes through here.

A guard's text can hold raw control bytes (torch prints a device index as the byte itself), a
program's message can hold terminal escapes, and a path can hold undecodable bytes.
"""

import re
import unicodedata
from typing import Literal

_JOINERS = "\u200c\u200d"
"""Invisible characters that Indic and Persian words need; they cannot reorder or hide text."""

_TAB = 4

Kind = Literal["text", "code"]


def hidden(character: str) -> bool:
    """Whether a character would act on the medium, or not be seen, instead of being shown."""
    if character in _JOINERS:
        return False
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _escaped(character: str) -> str:
    number = ord(character)
    if number <= 0xFF:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= 0xFFFF else f"\\U{number:08x}"


def block(text: str) -> str:
    r"""Text of several lines: control, direction and surrogate characters as ``\x00``, ``\u202e``.

    Newlines are kept (a carriage return before one is dropped) and tabs become spaces.
    """
    text = text.replace("\r\n", "\n").expandtabs(_TAB)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(_escaped(c) if c != "\n" and hidden(c) else c for c in text)


def line(text: str) -> str:
    r"""Text on one line: like ``block``, a newline shown as ``\n``, without spaces at its ends."""
    return block(text).strip(" \n").replace("\n", "\\n")


def words(text: str) -> str:
    """A sentence of our own on one line: runs of white space become one space."""
    return line(" ".join(text.split()))


def shorten(text: str, limit: int, where: str) -> str:
    """At most ``limit`` characters of ``text``, and then how many are left out and where they are.

    Nothing is cut unless the note about it is shorter than what it replaces.
    """
    note = f" ... ({len(text) - limit} more characters in {where})"
    return text if len(text) <= limit + len(note) else text[:limit].rstrip() + note


_SPAN = re.compile(r"(?<!`)(`+)(?!`)([^\n]+?)(?<!`)\1(?!`)")


def spans(text: str) -> list[tuple[Kind, str]]:
    """A sentence split at its `quoted code`: ``[("text", "All 3 called "), ("code", "f")]``.

    Code ends with a run of as many backticks as it began with (``phrases.quoted``); a run without
    such a partner is text.
    """
    found: list[tuple[Kind, str]] = []
    at = 0
    for match in _SPAN.finditer(text):
        if match.start() > at:
            found.append(("text", text[at : match.start()]))
        found.append(("code", match.group(2).strip() or match.group(2)))
        at = match.end()
    if at < len(text):
        found.append(("text", text[at:]))
    return found


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts names as people do: ``drafter-2`` before ``drafter-10``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() and part else (-1, part) for part in parts]
