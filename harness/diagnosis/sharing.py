"""What a report may show to others: no secrets, and no name of the user in paths.

The recording keeps whole paths, by which source lines are found; everything that is made from it
to be shown goes through here once.
"""

import functools
import re
from collections.abc import Callable

import msgspec

from harness.child.privacy import mask, mask_argv
from harness.diagnosis.report import Report

_COMMAND_LINES = frozenset({"argv", "command"})

# Where homes usually lie: a recording of an older version, or of another user, names no home.
_HOMES = r"/home/[^/\s'\"`:;,()\[\]<>]+|/Users/[^/\s'\"`:;,()\[\]<>]+|/root"
_CACHED = 4096


def shortener(home: str = "") -> Callable[[str], str]:
    """Return a function that masks secrets in a text and shortens home folders to ``~``.

    Args:
        home: the home folder of the user whose program it was; empty if not known.
    """
    own = re.escape(home.rstrip("/")) if home.startswith("/") and home.strip("/") else ""
    homes = re.compile(rf"(?<![\w.~/-])(?:{own + '|' if own else ''}{_HOMES})(?![\w.-])")

    def shorten(text: str) -> str:
        return homes.sub("~", mask(text)) if "/" in text else mask(text)

    return shorten


def for_sharing(report: Report) -> Report:
    """Return the report with secrets masked and home folders shortened in every text of it."""
    shorten = functools.lru_cache(_CACHED)(shortener(report.environment.home))
    shared = _walk(report, shorten)
    assert isinstance(shared, Report)
    return shared


def _walk(value: object, shorten: Callable[[str], str]) -> object:
    match value:
        case str():
            return shorten(value)
        case tuple() | list():
            return type(value)(_walk(item, shorten) for item in value)
        case dict():
            return {_walk(key, shorten): _walk(item, shorten) for key, item in value.items()}
        case msgspec.Struct():
            return _walk_struct(value, shorten)
        case _:
            return value


def _walk_struct(struct: msgspec.Struct, shorten: Callable[[str], str]) -> msgspec.Struct:
    changed = {}
    for name in struct.__struct_fields__:
        before = getattr(struct, name)
        if name in _COMMAND_LINES:
            before = type(before)(mask_argv(before))
        after = _walk(before, shorten)
        if after != getattr(struct, name):
            changed[name] = after
    return msgspec.structs.replace(struct, **changed) if changed else struct
