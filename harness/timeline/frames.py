"""Whose code a stack frame or a thread is: the program's, torch's or Python's own."""

import re
from collections.abc import Iterable

from harness.events.values import Frame

_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages)/")
_PYTHON = re.compile(r".*/lib/python3\.\d+/(?!.*(?:site-packages|dist-packages)/)")
_TORCH = ("torch/", "triton/")
_WATCH = "/harness/child/"


def of_dump(file: str, line: int, function: str) -> Frame:
    """A frame as faulthandler writes it, which does not say whose it is."""
    frame = Frame(file=file, line=line, function=function, user=False)
    installed = _PACKAGES.match(file) or _PYTHON.match(file) or file.startswith("<")
    return Frame(file, line, function, not installed and not is_torch(frame))


def is_watch(frame: Frame) -> bool:
    """Whether a frame is of the probes, which stand between torch's and the program's."""
    return _WATCH in frame.file


def is_torch(frame: Frame) -> bool:
    """Whether a frame is torch's, or triton's, which torch brings along."""
    if frame.user or frame.file.startswith("<") or _PYTHON.match(frame.file):
        return False
    installed = _PACKAGES.sub("", frame.file, count=1)
    if installed != frame.file:
        return installed.startswith(_TORCH)
    return any(f"/{folder}" in frame.file for folder in _TORCH)


def is_started_by_torch(creation: Iterable[Frame]) -> bool:
    """Whether torch started a thread, from the stack of its creation, innermost call first.

    Whoever is nearest decides, Python's own modules aside: a program's executor starts its threads
    from the standard library too, but on behalf of a frame of the program's.
    """
    nearest = (frame for frame in creation if frame.user or is_torch(frame))
    return not next(nearest, _PROGRAM).user


_PROGRAM = Frame(file="", line=0, function="", user=True)
