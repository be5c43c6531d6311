"""TOML files of the gate's: read whole, each mistake with the file's name and line."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dflash_min.errors import UsageError

_T = TypeVar("_T")
_AT = re.compile(r"\s*\(at line (\d+), column \d+\)$")


def read_toml(path: Path) -> tuple[str, dict[str, Any]]:
    """Return a TOML file's text and what it holds.

    Raises:
        UsageError: naming the file and, where it is no TOML, the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UsageError(f"{path}: {reason}") from error
    try:
        return text, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = _AT.search(str(error))
        line = int(at[1]) if at else len(text.splitlines())
        raise UsageError(f"{path}:{line}: {_AT.sub('', str(error))}") from error


def convert(raw: object, kind: type[_T], path: Path, line: int, what: str) -> _T:
    """Make a struct of a table. Raises UsageError, with the line at which the table begins."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}:{line}: {what}: {error}") from error


def check_keys(raw: Mapping[str, Any], known: tuple[str, ...], path: Path) -> None:
    """Refuse a key at the top of a file that means nothing. Raises UsageError."""
    for key in raw:
        if key not in known:
            raise UsageError(f"{path}: there is no {key}, only {', '.join(known)}")


def header_lines(text: str, header: str) -> list[int]:
    """Line numbers, from 1, of a table's header such as ``[[entry]]`` or ``[specs.a]``."""
    bare = header.strip("[]").split(".")
    parts = r"\s*\.\s*".join(rf"[\"']?{re.escape(part)}[\"']?" for part in bare)
    opening = re.escape("[" * (len(header) - len(header.lstrip("["))))
    pattern = re.compile(rf"^\s*{opening}\s*{parts}\s*\]", re.MULTILINE)
    return [text.count("\n", 0, match.end()) + 1 for match in pattern.finditer(text)]
