"""A process of the gate's: its output in a file, its limit, how it ended; nothing is left of it."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_min.errors import UsageError
from harness.supervise.ending import signal_name
from harness.supervise.folder import tail
from harness.supervise.stacks import take_stacks
from harness.supervise.tree import signal_group

_POLL_S = 0.05
# A command of the harness's takes stacks and writes its report after it was told to end.
_TERM_GRACE_S = 25.0
_LEFT_GRACE_S = 5.0
_STACKS_S = 5.0


class StoppedError(Exception):
    """The gate is being ended: nothing more is started."""


@dataclass(frozen=True)
class Ran:
    """How a process ended.

    Attributes:
        code: its exit code; None if a signal ended it.
        signal: the signal's name; empty if none did.
        hung_at: when its time was up and it was ended, as ``time.time()``; None: it was not.
        stacks: before that, every thread's stack.
        seconds: how long it ran.
        log: its stdout and stderr.
    """

    code: int | None
    signal: str
    hung_at: float | None
    stacks: str
    seconds: float
    log: Path

    @property
    def hung(self) -> bool:
        """Its time was up."""
        return self.hung_at is not None

    @property
    def ending(self) -> str:
        """``aborted by SIGABRT``, ``exit code 3``."""
        return f"aborted by {self.signal}" if self.signal else f"exit code {self.code}"

    @property
    def last_words(self) -> str:
        """The end of what it printed."""
        return tail(self.log)


def run_child(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    log: Path,
    limit_s: float,
    stopped: threading.Event,
) -> Ran:
    """Run a command to its end or to its limit.

    Args:
        command: the command line.
        cwd: where.
        environment: all of its environment.
        log: file for its output.
        limit_s: seconds.
        stopped: once it is set the process is ended.

    Raises:
        StoppedError: it was ended because of ``stopped``.
        UsageError: it cannot be started.
    """
    if stopped.is_set():
        raise StoppedError
    began = time.monotonic()
    process = _start(command, cwd, environment, log)
    hung_at, stacks = None, ""
    try:
        while process.poll() is None:
            if stopped.is_set():
                raise StoppedError
            if time.monotonic() - began > limit_s:
                hung_at = time.time()
                stacks = take_stacks(process.pid, log.parent, _STACKS_S).text
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    finally:
        _end(process)
    code = process.returncode
    return Ran(
        code=code if code >= 0 else None,
        signal=signal_name(-code) if code < 0 else "",
        hung_at=hung_at,
        stacks=stacks,
        seconds=round(time.monotonic() - began, 2),
        log=log,
    )


def _start(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """The process, in a session of its own, with all its output in ``log``."""
    with log.open("wb") as out:
        try:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process if it runs, and whatever is left of its group."""
    if process.poll() is None:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_TERM_GRACE_S)
    last = time.monotonic() + _LEFT_GRACE_S
    while process.poll() is not None and _group_lives(process.pid) and time.monotonic() < last:
        time.sleep(_POLL_S)
    signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
