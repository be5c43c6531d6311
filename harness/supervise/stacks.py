"""Stacks of a running program's threads, as py-spy sees them from outside."""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from harness.events.ended import ThreadWait
from harness.supervise.tree import recording_processes
from harness.supervise.waits import Frame, wait_of

_TIMEOUT_S = 20.0
_PROCESSES = 8
_MAX_TEXT = 256 * 1024


@dataclass(frozen=True)
class Stacks:
    """Every thread's stack as text, or why there is none; and what each thread waited for.

    ``taken``: there are stacks.
    """

    text: str = ""
    taken: bool = False
    waits: list[ThreadWait] = field(default_factory=list)


class _Thread(msgspec.Struct):
    """A thread in ``py-spy dump --json``, innermost frame first."""

    os_thread_id: int | None
    thread_name: str | None
    active: bool
    frames: list[Frame]


def take_stacks(pid: int, folder: Path, timeout_s: float = _TIMEOUT_S) -> Stacks:
    """Take the Python stacks of a process and of its descendants that recorded events.

    The processes are stopped for the moment that this takes, a few milliseconds each.

    Args:
        pid: the process.
        folder: the run folder.
        timeout_s: seconds for all of them: the program is not ended before.
    """
    last = time.monotonic() + timeout_s
    tool = Path(sys.executable).with_name("py-spy")
    command = str(tool) if tool.exists() else shutil.which("py-spy")
    if command is None:
        return Stacks("py-spy is not installed")
    texts: list[str] = []
    waits: list[ThreadWait] = []
    taken = False
    for process in list(recording_processes(pid, folder))[:_PROCESSES]:
        threads = _dump(command, process.pid, max(last - time.monotonic(), 0.1))
        if isinstance(threads, str):
            texts.append(threads)
            continue
        taken = True
        threads.sort(key=lambda thread: thread.os_thread_id or 0)
        texts.append(_text(process, threads))
        waits += [
            wait_of(process.pid, thread.os_thread_id or 0, thread.thread_name or "", thread.frames)
            for thread in threads
            if thread.frames and not thread.active
        ]
    return Stacks("\n\n".join(texts)[:_MAX_TEXT], taken, waits)


def _dump(command: str, pid: int, timeout_s: float) -> list[_Thread] | str:
    """The threads of a process, or why they cannot be had."""
    try:
        done = subprocess.run(
            [command, "dump", "--json", "--pid", str(pid)],
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"py-spy did not finish within {timeout_s:.1f} s"
    except OSError as error:
        return f"py-spy could not be started: {error}"
    if done.returncode != 0:
        why = " ".join(done.stderr.decode("utf-8", errors="replace").split())
        return f"py-spy could not look into process {pid}: {why}"
    try:
        return msgspec.json.decode(done.stdout, type=list[_Thread])
    except msgspec.DecodeError as error:
        return f"py-spy's answer about process {pid} cannot be read: {error}"


def _text(process: psutil.Process, threads: list[_Thread]) -> str:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        command = ""
    lines = [f"Process {process.pid}: {command}".rstrip(": ")]
    for thread in threads:
        state = "active" if thread.active else "idle"
        lines.append(f'Thread {thread.os_thread_id} ({state}): "{thread.thread_name or ""}"')
        lines += [
            f"    {f.name} ({f.short_filename or f.filename}:{f.line})" for f in thread.frames
        ]
    return "\n".join(lines)
