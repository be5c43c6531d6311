"""What a guardian does when the parent is gone: ends the program, writes down how it ended."""

import contextlib
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from harness.child.settings import VARIABLE
from harness.events.ended import Ended, write_ended
from harness.events.files import CACHE, ENDED, recordings
from harness.supervise.ending import child_failure, disk_full, take_faults
from harness.supervise.folder import tail
from harness.supervise.oom import OomCounter
from harness.supervise.stacks import Stacks, take_stacks
from harness.supervise.tree import end_leftovers, signal_group, still_alive

TERM_GRACE_S = 10.0
_KILL_GRACE_S = 5.0
_LOOK_S = 3.0


def finish(told: dict[str, Any], grace_s: float = TERM_GRACE_S) -> None:
    """End what runs of the program and write ``ended.json`` unless the parent has done so.

    Args:
        told: from the parent: ``folder``, ``mark`` (the program's watch settings, by which what it
            started is known), ``command``, ``log`` (empty: not captured), ``started``, ``start_s``
            (``time.monotonic()``), ``timeout_s``, ``remove_cache``, ``oom_counter`` and
            ``oom_before``, ``harness`` (its version) and ``pid``, which is missing where the parent
            did not get so far.
        grace_s: seconds that the program has to end after SIGTERM.
    """
    folder = Path(told["folder"])
    program = _program(told.get("pid"), told["mark"])
    stacks = take_stacks(program.pid, folder, _LOOK_S) if program else Stacks()
    sent = _end_program(program, grace_s)
    end_s = time.monotonic()
    full = disk_full(folder)
    leftovers = end_leftovers(told["mark"])
    if told["remove_cache"]:
        shutil.rmtree(folder / CACHE, ignore_errors=True)
    if (folder / ENDED).exists() or not folder.is_dir():
        return
    counter = _counter(told)
    ended = Ended(
        exit_code=None,
        killed_from_outside=True,
        parent_killed=True,
        sent=sent,
        oom_kills=counter.kills() if counter else None,
        oom_counter=str(counter.path) if counter else "",
        wall_s=round(end_s - told["start_s"], 3),
        started=told["started"],
        command=told["command"],
        stacks=stacks.text,
        waits=stacks.waits,
        fatal_stacks=take_faults(folder).fatal,
        stderr_tail=tail(Path(told["log"])) if told["log"] else "",
        timeout_s=told["timeout_s"],
        disk_full=full,
        leftovers=leftovers,
        child_failure=child_failure(folder),
        recordings=recordings(folder),
        parent_version=told["harness"],
    )
    with contextlib.suppress(OSError):  # a full disk: the recording has to do
        write_ended(folder, ended)


def _end_program(program: psutil.Process | None, grace_s: float) -> list[str]:
    """SIGTERM to the program's group, then SIGKILL; return what had to be sent."""
    if program is None:
        return []
    sent = []
    for number, grace in ((signal.SIGTERM, grace_s), (signal.SIGKILL, _KILL_GRACE_S)):
        signal_group(program.pid, number)
        sent.append(signal.Signals(number).name)
        if not still_alive([program], grace):
            break
    return sent


def _program(pid: int | None, mark: str) -> psutil.Process | None:
    """The program, if it still runs and no other process has got its number."""
    if pid is None:
        return None
    with contextlib.suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        running = process.status() != psutil.STATUS_ZOMBIE
        if running and process.environ().get(VARIABLE) == mark:
            return process
    return None


def _counter(told: dict[str, Any]) -> OomCounter | None:
    path = told["oom_counter"]
    return OomCounter(Path(path), told["oom_before"]) if path else None
