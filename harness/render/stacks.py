"""Stacks as people read them: the program's own frames, and torch's folded between them."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from harness.events.values import Frame

_INSTALLED = re.compile(r".*/(?:site-packages|dist-packages)/|.*/lib/python3\.\d+/")


@dataclass(frozen=True)
class Row:
    """A frame, or a run of library frames folded into one row.

    Attributes:
        text: the function of a frame, or what was folded.
        place: ``file:line``; empty for a fold.
        short: ``place`` with the last folder and file only.
        folded: the folded frames, in the stack's order; empty for a frame.
        note: how many frames are folded under a frame that is shown.
        frame: the frame that is shown; None for a fold.
    """

    text: str
    place: str = ""
    short: str = ""
    folded: tuple[Frame, ...] = ()
    note: str = ""
    frame: Frame | None = None


@dataclass(frozen=True)
class Folded:
    """A stack to show.

    Attributes:
        inside: the library call that the program was in, the frames below it folded; None if
            the innermost frame is the program's own.
        rows: the program's frames, innermost first, library frames folded between them.
    """

    inside: Row | None
    rows: tuple[Row, ...]


def place(frame: Frame) -> str:
    """``file:line``; files of installed packages and of the standard library by their own path."""
    return f"{_INSTALLED.sub('', frame.file)}:{frame.line}"


def short_place(frame: Frame) -> str:
    """``folder/file.py:line`` for the program's files, ``torch/…/file.py:line`` for installed."""
    path = _INSTALLED.sub("", frame.file)
    if path == frame.file:
        path = "/".join(path.split("/")[-2:])
    return f"{path}:{frame.line}"


def _kind(frames: Iterable[Frame]) -> str:
    """``torch``, ``library``, or both, for the frames that are not the program's."""
    of_torch = {"/torch/" in f"/{frame.file}" for frame in frames}
    return {frozenset({True}): "torch", frozenset({False}): "library"}.get(
        frozenset(of_torch), "torch and library"
    )


def _count(frames: tuple[Frame, ...]) -> str:
    return f"{len(frames)} {_kind(frames)} frame{'s' if len(frames) != 1 else ''}"


def _row(frame: Frame) -> Row:
    return Row(frame.function, place(frame), short_place(frame), frame=frame)


def fold(frames: Iterable[Frame]) -> Folded:
    """Fold a stack given from the innermost frame to the outermost.

    A stack without a frame of the program's own keeps its three innermost frames.
    """
    frames = tuple(frames)
    if not any(frame.user for frame in frames):
        shown, rest = frames[:3], frames[3:]
        fold_row = (Row(_count(rest), folded=rest),) if rest else ()
        return Folded(None, (*map(_row, shown), *fold_row))
    runs: list[tuple[bool, tuple[Frame, ...]]] = [
        (user, tuple(run)) for user, run in groupby(frames, key=lambda frame: frame.user)
    ]
    inside = None
    if not runs[0][0]:
        innermost = runs.pop(0)[1]
        inside = replace(_row(innermost[0]), folded=innermost, note=f"({_count(innermost)})")
    rows: list[Row] = []
    for user, run in runs:
        rows += map(_row, run) if user else [Row(_count(run), folded=run)]
    return Folded(inside, tuple(rows))
