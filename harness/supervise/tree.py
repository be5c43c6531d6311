"""The watched program's process tree: its CPU time, signals to it, and what is left of it."""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.child.settings import VARIABLE
from harness.events.files import event_files, events_of, segments

# A tree that waits for something uses a few milliseconds a second for timers and heartbeats.
_IDLE_SHARE = 0.05
_POLL_S = 0.05
# Nothing survives SIGKILL; on a busy machine it takes its time all the same.
_KILL_GRACE_S = 5.0


@dataclass(frozen=True)
class Activity:
    """What a process tree had done at one moment.

    Attributes:
        at: ``time.monotonic()``.
        cpu_s: user and system seconds by process id.
        recorded: bytes of events.
    """

    at: float
    cpu_s: dict[int, float]
    recorded: int

    @classmethod
    def now(cls, pid: int, folder: Path) -> "Activity":
        """Look at the tree below ``pid`` and at the recording in ``folder``."""
        cpu: dict[int, float] = {}
        for process in processes(pid):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                cpu[process.pid] = times.user + times.system
        recorded = 0
        for path in (*event_files(folder), *segments(folder)):
            with contextlib.suppress(OSError):  # a segment may just have been deleted
                recorded += path.stat().st_size
        return cls(time.monotonic(), cpu, recorded)

    def idle_since(self, before: "Activity") -> bool:
        """Whether nothing was recorded and next to no CPU used (5 % of one) since ``before``."""
        if self.recorded != before.recorded:
            return False
        used = sum(s - before.cpu_s.get(pid, 0.0) for pid, s in self.cpu_s.items())
        return used < _IDLE_SHARE * (self.at - before.at)


def processes(pid: int) -> list[psutil.Process]:
    """Return the process and its descendants, itself first; empty if it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that ``pid`` leads; nothing if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def recording_processes(pid: int, folder: Path) -> Iterator[psutil.Process]:
    """Yield the process and those of its descendants that recorded events."""
    for process in processes(pid):
        if process.pid == pid or events_of(folder, process.pid).exists():
            yield process


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that were started with ``mark`` as their watch settings.

    The mark is inherited with the environment, so this finds descendants whose parents are gone
    and those that made a session of their own.
    """
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(VARIABLE) == mark:
                found.append(process)
    return found


def end_leftovers(mark: str, grace_s: float = 2.0) -> int:
    """End the processes that the program has left behind; return how many had to be ended.

    Helpers such as inductor's compile workers notice by themselves that the program is gone, and
    are given ``grace_s`` seconds to do so.
    """
    left = still_alive(marked(mark), grace_s)
    if not left:
        return 0
    ways = ((psutil.Process.terminate, grace_s), (psutil.Process.kill, _KILL_GRACE_S))
    for end, wait_s in ways:
        # Looked for again: something may have been started in the meantime.
        alive = marked(mark)
        for process in alive:
            with contextlib.suppress(psutil.Error):
                end(process)
        if not still_alive(alive, wait_s):
            break
    return len(left)


def still_alive(found: Sequence[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """Wait until none runs, at most ``grace_s`` seconds; return those that still do."""
    deadline = time.monotonic() + grace_s
    # psutil's own wait waits for zombies too, and a container's first process may never reap them.
    while (alive := [process for process in found if _runs(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(_POLL_S)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
