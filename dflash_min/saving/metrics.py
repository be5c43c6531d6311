"""`metrics.jsonl`: what training measured, a JSON object a line.

Each line has `step`, the number of finished optimiser steps, and `kind`: "train" for a step over
all drafters, "eval" for held-out text. A number that is not finite, or that does not exist, is
null. Lines appear in order of step.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dflash_min.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE: Final = "metrics.jsonl"


class Metrics:
    """Appends lines, each of which is in the file when `write` returns."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if it is not there. Raises OSError if that is impossible."""
        self._path = path
        # Not buffered: what a full disk has refused is not to be written again by close.
        self._file = path.open("ab", buffering=0)

    def write(self, step: int, kind: str, values: Mapping[str, object]) -> None:
        """Append a line.

        Args:
            step: finished optimiser steps.
            kind: "train" or "eval".
            values: numbers, or lists of numbers.

        Raises:
            OSError: if the line cannot be written; nothing is left of it.
        """
        left = msgspec.json.encode({"step": step, "kind": kind, **values}) + b"\n"
        end = os.fstat(self._file.fileno()).st_size
        try:
            while left:  # a write may take less than all, as the last one on a full disk does
                left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise

    def sync(self) -> None:
        """Make all lines durable. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file, in order; a last line cut off by a kill is left out.

    Raises:
        OSError: if the file cannot be read.
        UsageError: naming the first line that is damaged.
    """
    return [_decoded(path, number, line)[1] for number, line in _lines(path)]


def rewind(path: Path, step: int) -> None:
    """Drop the lines after a step, and one cut off, so that a resumed run can write them again.

    Raises:
        OSError: if that is impossible; the file is then as it was.
        UsageError: naming the first line that is damaged; the file is as it was.
    """
    if not path.exists():
        return
    kept = [line for number, line in _lines(path) if _decoded(path, number, line)[0] <= step]
    aside = path.with_name(f".{path.name}")
    with aside.open("wb") as file:
        file.write(b"".join(line + b"\n" for line in kept))
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def _lines(path: Path) -> enumerate[bytes]:
    return enumerate(path.read_bytes().split(b"\n")[:-1], start=1)


class _Line(msgspec.Struct):
    step: int
    kind: str


def _decoded(path: Path, number: int, line: bytes) -> tuple[int, dict[str, Any]]:
    """Return the step of a line, and all of it."""
    try:
        step = msgspec.json.decode(line, type=_Line).step
        return step, msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}:{number}: a damaged line ({error}); delete it, or move the file away"
        ) from error
