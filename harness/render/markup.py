"""Pieces of Markdown that hold any text without letting it become markup (GitHub's dialect)."""

import re
from collections.abc import Iterable, Sequence

from harness.render import text

_SPECIAL = re.compile(r"[\\`*\[\]<>|~&{}]|(?<![^\W_])_|_(?![^\W_])|(?<!\S)#")
_REFERENCE = re.compile(r"(?<!\w)[@#]\w[\w.-]*")
"""A mention or an issue number: pasted into an issue, these would notify people or link."""

_REFERENCE_ESCAPED = re.compile(r"(?<![\w&])[@#]\w[\w.-]*|(?<=\\&)#\w[\w.-]*")
"""The same in text that is escaped already, whose own ``&#124;`` are none."""

_LEADING = re.compile(r"^(\d+)([.)])|^([#+=:-])")


def _plain(part: str) -> str:
    # GitHub reads a formula between dollar signs, and an escaped one still begins it.
    return _SPECIAL.sub(r"\\\g<0>", part).replace("$", "&#36;")


def inline(sentence: str) -> str:
    """A sentence for a paragraph, a list item or a heading; `code` in backticks stays code."""
    parts = []
    for kind, part in text.spans(text.words(sentence)):
        if kind == "code":
            parts.append(code(part))
            continue
        at = 0
        for match in _REFERENCE.finditer(part):
            parts += [_plain(part[at : match.start()]), code(match[0])]
            at = match.end()
        parts.append(_plain(part[at:]))
    return _LEADING.sub(lambda m: f"{m[1]}\\{m[2]}" if m[1] else f"\\{m[3]}", _joined(parts))


def _joined(parts: Iterable[str]) -> str:
    """Join pieces; a code span right after another would continue that one's backticks."""
    joined = ""
    for part in parts:
        between = "<!-- -->" if joined.endswith("`") and part.startswith("`") else ""
        joined += between + part
    return joined


def code(value: str) -> str:
    """A code span of any text, on one line."""
    value = text.line(value)
    if not value.strip():
        return "(empty)"
    ticks = "`" * (max((len(run) for run in re.findall("`+", value)), default=0) + 1)
    pad = " " if value[0] in "` " or value[-1] in "` " else ""
    return f"{ticks}{pad}{value}{pad}{ticks}"


def link(label: str, target: str) -> str:
    """A link to a file of the run folder; ``target`` is a name of our own making."""
    return f"[{_plain(text.line(label))}](<{target}>)"


def fence(value: str, language: str = "") -> list[str]:
    """A fenced block: longer than any run of backticks inside it."""
    lines = text.block(value).rstrip("\n").split("\n")
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    ticks = "`" * max(3, longest + 1)
    return [f"{ticks}{language}", *lines, ticks]


def cell(sentence: str) -> str:
    """``inline`` for a table's cell: where code cannot be quoted safely it is plain text."""
    parts = []
    for kind, part in text.spans(text.words(sentence)):
        parts.append(cell_code(part) if kind == "code" else _cell_text(part))
    return _joined(parts)


def cell_code(value: str) -> str:
    """A code span in a table. A pipe or a backslash cannot be quoted there: then plain text."""
    value = text.line(value)
    return _cell_text(value) if set(value) & set("|\\") or not value.strip() else code(value)


def _cell_text(value: str) -> str:
    escaped = _plain(text.block(value)).replace("\\\\", "&#92;").replace("\\|", "&#124;")
    return _REFERENCE_ESCAPED.sub(lambda match: match[0][0] + "<!-- -->" + match[0][1:], escaped)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table of cells that are Markdown already (``cell``, ``cell_code``, ``link``)."""
    return [
        f"| {' | '.join(heads)} |",
        f"|{'|'.join(' --- ' for _ in heads)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
