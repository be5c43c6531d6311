"""`metrics.jsonl`: what training measured, a JSON object a line.

Each line has `step`, the number of finished optimiser steps, and `kind`: "train" for a step over
all drafters, "eval" for held-out text. A number that is not finite, or that does not exist, is
null. Lines appear in order of step.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "metrics.jsonl"


class Metrics:
    """Appends lines, each of which is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if it is not there. Raises OSError if that is impossible."""
        self._path = path
        self._file = path.open("ab")

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Append a line.

        Args:
            step: finished optimiser steps.
            kind: "train" or "eval".
            values: numbers, or lists of numbers.

        Raises:
            OSError: if the line cannot be written.
        """
        self._file.write(msgspec.json.encode({"step": step, "kind": kind, **values}) + b"\n")
        self._file.flush()

    def sync(self) -> None:
        """Make all lines durable. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file, in order; a last line cut off by a kill is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]


def rewind(path: Path, step: int) -> None:
    """Drop the lines after a step, and one cut off, so that a resumed run can write them again.

    Raises:
        OSError: if that is impossible; the file is then as it was.
    """
    if not path.exists():
        return
    whole = path.read_bytes().split(b"\n")[:-1]
    kept = [line for line in whole if _step(line) <= step]
    aside = path.with_name(f".{path.name}")
    with aside.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


class _Line(msgspec.Struct):
    step: int


def _step(line: bytes) -> int:
    return msgspec.json.decode(line, type=_Line).step
