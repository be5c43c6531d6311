"""Whose code a stack frame or a thread is: the program's, torch's or Python's own."""

import re
from collections.abc import Iterable

from harness.events.values import Frame

_PACKAGES = re.compile(r".*/(?:site-packages|dist-packages)/")
_PYTHON = re.compile(r".*/lib/python3\.\d+/(?!.*(?:site-packages|dist-packages)/)")
_TORCH = ("torch/", "triton/")


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
