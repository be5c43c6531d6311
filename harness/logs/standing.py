"""Whether words of torch's in a line were said there, or only stand in it: quoted, in source code.

A message is said where nothing stands before it in its line but what programs and loggers put
there: an exception's type, a level, a name and a separator. Inside quotes it counts where they are
those of a log's field or of an exception's repr.
"""

import re

_CLOSING = {'"': '"', "'": "'", "`": "`'", "“": "”", "„": "”“", "«": "»"}
_COMMENT = re.compile(r"\s*#+:?\s*(?![\d\s#])|\s*//|.*\s(?:#+|//+)\s+(?![\d\s])", re.DOTALL)
# A type's modules, which a pattern that begins at the type's name has left out.
_MODULES = re.compile(r"(?:[A-Za-z_]\w*\.)+$")
_SEPARATED = re.compile(
    r"[:\])>}|│;-]\s*$|\w=$|(?:^|\s)E\s+$"
    r"|(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)\s+$|(?:Error|Exception|Warning)\s+$"
)
_JSON_LINE = re.compile(r"\s{0,8}[\[{].*[\w\"']\"\s{0,4}:\s{0,4}$", re.DOTALL)
_FIELD = re.compile(r"(?:^|.*[^\s,(]\s+)[\w.]+=$", re.DOTALL)
_REPR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z]\w*(?:Error|Exception|Warning|Hit|Mismatch)\($")
_WORD = re.compile(r"(\w+)\s+$")
_STATEMENTS = frozenset({"raise", "return", "yield", "from", "await", "assert", "in", "is", "or"})
_ESCAPED_BREAK = re.compile(r"\\+n")
_MAX_HEAD = 1 << 14
_NEAR = 400
"""So many characters before a message are looked at for what leads to it."""


def stands(text: str, at: int) -> bool:
    """Whether what begins at ``at`` in a line, whose prefixes are off, was said there."""
    head = _ESCAPED_BREAK.sub("\n", text[max(0, at - _MAX_HEAD) : at])
    quote = _open_quote(head)
    if quote is None:
        return _said_after(head)
    outside, inside = head[:quote], head[quote + 1 :].rpartition("\n")[2]
    if _JSON_LINE.match(outside) or _FIELD.match(outside[-_NEAR:]):
        return _said_after(inside.rstrip('\\"'))  # JSON within JSON
    return not inside and _is_repr(outside)


def quoted(text: str, at: int) -> bool:
    """Whether quotes that begin before ``at`` are still open there."""
    return _open_quote(text[max(0, at - _MAX_HEAD) : at]) is not None


def _said_after(head: str) -> bool:
    if _COMMENT.match(head):
        return False
    head = _MODULES.sub("", head[-_NEAR:])
    return not head.strip() or _SEPARATED.search(head) is not None


def _is_repr(outside: str) -> bool:
    """Whether a quote after this opens the text of an exception that was printed by its repr."""
    near = outside[-_NEAR:]
    found = _REPR.search(near)
    if found is None or _COMMENT.match(outside):
        return False
    before = near[: found.start()]
    if word := _WORD.search(before):
        return word[1] not in _STATEMENTS
    return not before or (bool(before.strip()) and _SEPARATED.search(before) is not None)


def _open_quote(head: str) -> int | None:
    """Where the quotes begin that are open at the end; None if there are none."""
    opened: int | None = None
    for at, char in enumerate(head):
        if opened is None:
            # An apostrophe stands after a letter, quotes do not.
            if char in _CLOSING and not (char == "'" and head[at - 1 : at].isalnum()):
                opened = at
        elif char in _CLOSING[head[opened]] and not _escaped(head, at):
            inner = char == "'" and head[at + 1 : at + 2].isalnum()
            opened = opened if inner else None
    return opened


def _escaped(head: str, at: int) -> bool:
    before = head[max(0, at - 64) : at]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1
