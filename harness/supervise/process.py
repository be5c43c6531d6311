"""Starts the program, waits for its end, ends it at the deadline, and says how it ended."""

import contextlib
import datetime as dt
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO

from dflash_min.errors import UsageError
from harness import __version__
from harness.child.boot import FAILURE
from harness.child.session import FAULTS
from harness.events.ended import Ended, write_ended
from harness.events.files import CACHE
from harness.supervise.folder import tail
from harness.supervise.launch import Launch
from harness.supervise.tree import Activity, dump_stacks, end_leftovers

_POLL_S = 0.05
_IDLE_WINDOW_S = 2.0
_TERM_GRACE_S = 3.0
_INTERRUPT_GRACE_S = 30.0
_TERMINATE_GRACE_S = 10.0
_TAIL_BYTES = 16 * 1024
_FAULT_BYTES = 256 * 1024
_FULL_BYTES = 4096

# Signals that people, schedulers and the kernel's out-of-memory killer send; no crash raises them.
_FROM_OUTSIDE = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
}

Tick = Callable[[], None]


def supervise(launch: Launch, tick: Tick = lambda: None) -> Ended:
    """Run the program to its end, whatever that is, and write ``ended.json``.

    Args:
        launch: what to start.
        tick: called some twenty times a second while the program runs.

    Raises:
        UsageError: the program cannot be started.
    """
    watched = _Watched(launch)
    with _passing_on_signals(watched):
        watched.start()
        try:
            watched.wait(tick)
        finally:
            watched.clean_up()
    ended = watched.ended()
    with contextlib.suppress(OSError):  # a full disk: the caller still has it
        write_ended(launch.folder, ended)
    return ended


class _Watched:
    """The running program."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._start_s = time.monotonic()
        self._end_s = self._start_s
        self._deadline = self._start_s + launch.timeout_s
        self._mark = ""
        self._before: Activity | None = None
        self._sent: set[int] = set()
        self._kill_at: float | None = None
        self._interrupted = False
        self._told_to_end = False
        self._deadline_hit = False
        self._idle: bool | None = None
        self._stacks = ""
        self._stacks_taken = False
        self._leftovers = 0

    def start(self) -> None:
        launch = self._launch
        self._start_s = time.monotonic()
        self._deadline = self._start_s + launch.timeout_s
        settings = launch.settings(self._deadline)
        self._mark = settings.dumps()
        with contextlib.ExitStack() as stack:
            log: IO[bytes] | None = None
            if launch.log is not None:
                log = stack.enter_context(launch.log.open("wb"))
            try:
                self._process = subprocess.Popen(
                    launch.command,
                    env=launch.environment(settings),
                    stdin=subprocess.DEVNULL if log else None,
                    stdout=log,
                    stderr=subprocess.STDOUT if log else None,
                    # A session of its own: the whole tree can be signalled, and reading from our
                    # terminal works, which it would not for a background group of our session.
                    start_new_session=True,
                )
            except OSError as error:
                reason = error.strerror or type(error).__name__
                raise UsageError(f"cannot start {launch.command[0]}: {reason}") from error

    def wait(self, tick: Tick) -> None:
        """Return when the main process has ended, of itself or by the deadline."""
        process = self._running()
        while True:
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                self._end_s = time.monotonic()
                return
            tick()
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                self._end_now()
            elif now >= self._deadline:
                self._at_deadline()
            elif self._before is None and now >= self._deadline - self._window():
                self._before = self._activity()

    def signalled(self, number: int) -> None:
        """Pass on a signal that the parent got; the second one ends the program at once."""
        again = bool(self._interrupted or self._told_to_end)
        if number == signal.SIGINT:
            self._interrupted = True
            grace = _INTERRUPT_GRACE_S
        else:
            self._told_to_end = True
            grace = _TERMINATE_GRACE_S
        if self._process is None:
            return
        if again:
            self._signal_tree(signal.SIGKILL)
            return
        self._kill_at = time.monotonic() + grace
        if number == signal.SIGINT:  # a terminal's Ctrl-C reaches the whole foreground group
            self._signal_tree(number)
        else:
            self._sent.add(number)
            self._process.send_signal(number)

    def clean_up(self) -> None:
        """End what is left of the program and remove its compile cache."""
        process = self._running()
        if process.poll() is None:  # we are leaving through an exception
            self._signal_tree(signal.SIGKILL)
            process.wait()
        self._leftovers = end_leftovers(self._mark)
        if not self._launch.watch.keep_cache:
            shutil.rmtree(self._launch.folder / CACHE, ignore_errors=True)

    def ended(self) -> Ended:
        """Return what is known about the end."""
        folder, code = self._launch.folder, self._running().returncode
        number = -code if code < 0 else None
        fatal, at_deadline = split_faults(_take_faults(folder))
        stacks = self._stacks
        if self._deadline_hit and not self._stacks_taken and at_deadline:
            stacks = f"{stacks}; the program's own faulthandler wrote:\n{at_deadline}"
        return Ended(
            exit_code=code if number is None else None,
            signal=number,
            signal_name=_signal_name(number),
            deadline_hit=self._deadline_hit,
            idle_at_deadline=self._idle,
            killed_from_outside=self._killed_from_outside(number),
            interrupted=self._interrupted,
            wall_s=round(self._end_s - self._start_s, 3),
            started=self._started.isoformat(timespec="seconds"),
            command=list(self._launch.command),
            stacks=stacks,
            fatal_stacks=fatal,
            stderr_tail=tail(self._launch.log, _TAIL_BYTES) if self._launch.log else "",
            timeout_s=self._launch.timeout_s,
            disk_full=_disk_full(folder),
            leftovers=self._leftovers,
            child_failure=tail(folder / FAILURE, _TAIL_BYTES),
            parent_version=__version__,
        )

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _window(self) -> float:
        return min(_IDLE_WINDOW_S, self._launch.timeout_s / 2)

    def _activity(self) -> Activity:
        return Activity.now(self._running().pid, self._launch.folder)

    def _at_deadline(self) -> None:
        process = self._running()
        idle = self._activity().idle_since(self._before or self._activity())
        stacks, taken = dump_stacks(process.pid, self._launch.folder)
        if process.poll() is not None:  # it ended just now, by itself
            return
        self._deadline_hit, self._idle = True, idle
        self._stacks, self._stacks_taken = stacks, taken
        self._end_now()

    def _end_now(self) -> None:
        """SIGTERM, so that the program can still save something, then SIGKILL."""
        self._deadline = self._kill_at = float("inf")
        process = self._running()
        for number, grace in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, None)):
            self._signal_tree(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
                return

    def _signal_tree(self, number: int) -> None:
        self._sent.add(number)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._running().pid, number)

    def _killed_from_outside(self, number: int | None) -> bool:
        if self._told_to_end:
            return True
        return number in _FROM_OUTSIDE and number not in self._sent


@contextlib.contextmanager
def _passing_on_signals(watched: _Watched) -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        watched.signalled(number)

    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, handle)
    except ValueError:  # not the main thread: the caller's handlers stay
        pass
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def split_faults(text: str) -> tuple[str, str]:
    """Split faulthandler's file into what a fatal signal and what the deadline made it write.

    The headings are those of CPython's ``Modules/faulthandler.c``: ``Fatal Python error: ...`` and
    ``Timeout (0:09:59)!``.
    """
    fatal = text.find("Fatal Python error")
    timeout = text.find("Timeout (")
    if fatal < 0:
        return "", text[timeout:] if timeout >= 0 else ""
    if 0 <= timeout < fatal:
        return text[fatal:], text[timeout:fatal]
    return text[fatal:], ""


def _take_faults(folder: Path) -> str:
    path = folder / FAULTS
    text = tail(path, _FAULT_BYTES)
    if not text:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
    return text


def _signal_name(number: int | None) -> str:
    if number is None:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _disk_full(folder: Path) -> bool:
    try:
        status = os.statvfs(folder)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _FULL_BYTES
