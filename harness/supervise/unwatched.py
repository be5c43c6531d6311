"""Python processes that the program starts past the watch, as the process tree shows them.

The watch reaches a child by its environment: one that is started with an environment of its own,
or with an option that ignores PYTHONPATH or sitecustomize, records nothing. A process that lives
for less than ``EVERY_S``, too short to import torch, goes unseen.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from harness.child.boot import is_helper
from harness.child.privacy import mask_argv
from harness.child.settings import VARIABLE
from harness.events.ended import Unwatched
from harness.supervise.executable import INTERPRETER
from harness.supervise.launch import SITE
from harness.supervise.program import option_that_shuts_out

EVERY_S = 1.0
MAX_TOLD = 32
_LONGEST = 200
_TORCH = b"libtorch"


class UnwatchedChildren:
    """Those that were seen below the program so far."""

    def __init__(self) -> None:
        self._next = 0.0
        self._known: dict[tuple[int, float], Unwatched | None] = {}

    def look(self, pid: int) -> None:
        """Look at the processes below ``pid``, if that was not done just now."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        for process in _programs(pid):
            with contextlib.suppress(psutil.Error, OSError):
                self._look_at(process)

    def found(self) -> list[Unwatched]:
        """The children that were seen, in that order, at most ``MAX_TOLD``."""
        return [child for child in self._known.values() if child is not None][:MAX_TOLD]

    def _look_at(self, process: psutil.Process) -> None:
        key = (process.pid, process.create_time())
        known = self._known.get(key)
        command = process.cmdline()
        if known is None or shlex.join(mask_argv(command))[:_LONGEST] != known.command:
            # Between fork and exec a child is still what its parent is.
            known = self._known[key] = self._unwatched(process, command)
        if known is not None and not known.torch and _has_torch(process.pid):
            self._known[key] = Unwatched(
                pid=known.pid, command=known.command, option=known.option, torch=True
            )

    def _unwatched(self, process: psutil.Process, command: Sequence[str]) -> Unwatched | None:
        if not command or not INTERPRETER.fullmatch(Path(command[0]).name):
            return None
        option = option_that_shuts_out(command[1:])
        if not option and _is_reached(process.environ()):
            return None
        text = shlex.join(mask_argv(list(command)))[:_LONGEST]
        return Unwatched(pid=process.pid, command=text, option=option)


def _is_reached(environment: dict[str, str]) -> bool:
    """Whether a watch gets into a process: this one, or one that the program started itself."""
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return bool(environment.get(VARIABLE)) and str(SITE) in paths


def _programs(pid: int) -> Iterator[psutil.Process]:
    """The descendants of ``pid`` but the helpers of Python and torch, and what those start."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return
    parents: dict[int, int] = {}
    helpers: set[int] = set()
    for process in found:
        with contextlib.suppress(psutil.Error):
            parents[process.pid] = process.ppid()
            if is_helper(process.cmdline()):
                helpers.add(process.pid)
    for process in found:
        if helpers.isdisjoint(_line(process.pid, parents)):
            yield process


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """A process and those above it."""
    seen = set[int]()
    while pid not in seen and pid in parents:
        seen.add(pid)
        yield pid
        pid = parents[pid]


def _has_torch(pid: int) -> bool:
    try:
        return _TORCH in Path(f"/proc/{pid}/maps").read_bytes()
    except OSError:
        return False
