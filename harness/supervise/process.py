"""Starts the program, waits for its end, ends it at the deadline, and says how it ended."""

import contextlib
import datetime as dt
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from typing import IO

from dflash_min.errors import UsageError
from dflash_min.standard_streams import tell
from harness import __version__
from harness.child.session import DEADLINE_DUMP_S
from harness.events.ended import Ended, ThreadWait, write_ended
from harness.events.files import CACHE, PRIVATE, recordings
from harness.supervise.ending import (
    FROM_OUTSIDE,
    Faults,
    child_failure,
    disk_full,
    signal_name,
    take_faults,
)
from harness.supervise.folder import tail
from harness.supervise.guard import Guard
from harness.supervise.launch import Launch
from harness.supervise.oom import OomCounter, find_counter
from harness.supervise.signals import Asked, passing_on_signals
from harness.supervise.stacks import Stacks, take_stacks
from harness.supervise.tree import Activity, end_leftovers, signal_group
from harness.supervise.unwatched import UnwatchedChildren
from harness.supervise.waits import waits_of_faults

_POLL_S = 0.05
_IDLE_WINDOW_S = 2.0
_TERM_GRACE_S = 3.0
_SAY_AFTER_S = 1.5
_INTERRUPT_GRACE_S = 30.0
_TERMINATE_GRACE_S = 10.0
# Whoever tells us to end gives us, too, only some seconds.
_TOLD_LOOK_S = 3.0

Tick = Callable[[], str | None]


def supervise(launch: Launch, tick: Tick = lambda: None) -> Ended:
    """Run the program to its end, whatever that is, and write ``ended.json``.

    Should this process itself be killed, a guardian ends the program and writes the file.

    Args:
        launch: what to start.
        tick: called some twenty times a second while the program runs. What it returns, if
            anything, is why the program is to be ended now (``Ended.stopped_on``).

    Raises:
        UsageError: the program cannot be started.
    """
    watched = _Watched(launch)
    # The guardian is let go inside: a signal that comes meanwhile would end us without a report.
    with passing_on_signals(watched.asked):
        try:
            try:
                watched.start()
                watched.wait(tick)
            finally:
                watched.clean_up()
            ended = watched.ended()
            with contextlib.suppress(OSError):  # a full disk: the caller still has it
                write_ended(launch.folder, ended)
        finally:
            watched.let_guardian_go()
    return ended


class _Watched:
    """The running program."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None
        self._started = dt.datetime.now(dt.UTC)
        self._start_s = self._end_s = time.monotonic()
        self._deadline = self._start_s + launch.timeout_s
        self._mark = ""
        self._oom: OomCounter | None = None
        self._before: Activity | None = None
        self._sent: list[int] = []
        self._kill_at: float | None = None
        self._ending = self._hurried = False
        self._interrupted_s: float | None = None
        self._deadline_hit = False
        self._stopped_on = ""
        self._to_tell: int | None = None
        self._told: int | None = None
        self._idle: bool | None = None
        self._stacks = Stacks()
        self._disk_full = False
        self._leftovers = 0
        self._unwatched = UnwatchedChildren()
        self.asked = Asked(self._pass_on)

    def start(self) -> None:
        """Start the guardian, then the program. Raises UsageError."""
        launch = self._launch
        self._start_s = self._end_s = time.monotonic()
        self._deadline = self._start_s + launch.timeout_s
        settings = launch.settings(self._deadline)
        self._mark = settings.dumps()
        self._oom = find_counter()
        self._guard = Guard.start(self._for_the_guardian())
        with contextlib.ExitStack() as stack:
            log: IO[bytes] | None = None
            if launch.log is not None:
                log = stack.enter_context(launch.log.open("wb"))
                os.fchmod(log.fileno(), PRIVATE)
            launch.make_trace_folder()
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
        if self._guard is not None:
            self._guard.tell({"pid": self._process.pid})
        self.asked.ready()

    def wait(self, tick: Tick) -> None:
        """Return when the main process has ended, of itself or by us."""
        process = self._running()
        tick()  # however soon the program ends
        while True:
            try:
                process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                self._end_s = time.monotonic()
                return
            if self._to_tell is not None:
                self._tell_to_end()
            if self.asked.interrupted:
                self._say_that_we_wait()
            self._unwatched.look(process.pid)
            stop = tick()
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                self._look_before_the_end()
                self._end_now()
            elif stop and process.poll() is None:
                self._stopped_on = stop
                self._end_now()
            elif now >= self._deadline:
                self._at_deadline()
            elif self._before is None and now >= self._deadline - self._window():
                self._before = self._activity()

    def clean_up(self) -> None:
        """End what is left of the program and remove its compile cache."""
        process = self._process
        if process is None:  # it was never started
            return
        if process.poll() is None:  # we are leaving through an exception
            self._signal_tree(signal.SIGKILL)
            process.wait()
        # Before the cache goes, which may have been what filled the disk.
        self._disk_full = disk_full(self._launch.folder)
        self._leftovers = end_leftovers(self._mark)
        self._launch.remove_empty_trace_folder()
        if not self._launch.watch.keep_cache:
            shutil.rmtree(self._launch.folder / CACHE, ignore_errors=True)

    def let_guardian_go(self) -> None:
        """The end is known and written down."""
        if self._guard is not None:
            self._guard.goodbye()

    def ended(self) -> Ended:
        """Return what is known about the end."""
        folder, code = self._launch.folder, self._running().returncode
        faults = take_faults(folder)
        number = faults.first_signal(-code if code < 0 else None)
        if self._crashed_by_faulthandler(number, faults):
            self._deadline_hit = True
        stacks, waits = self._before_the_end(faults.deadline)
        return Ended(
            exit_code=code if number is None else None,
            signal=number,
            signal_name=signal_name(number),
            deadline_hit=self._deadline_hit,
            idle_at_deadline=self._idle,
            killed_from_outside=self._killed_from_outside(number),
            told_to_end=signal_name(self._told),
            interrupted=self.asked.interrupted,
            sent=[signal_name(sent) for sent in dict.fromkeys(self._sent)],
            stopped_on=self._stopped_on,
            oom_kills=self._oom.kills() if self._oom else None,
            oom_counter=str(self._oom.path) if self._oom else "",
            wall_s=round(self._end_s - self._start_s, 3),
            started=self._started.isoformat(timespec="seconds"),
            command=list(self._launch.command),
            stacks=stacks,
            waits=waits,
            fatal_stacks=faults.fatal,
            stderr_tail=tail(self._launch.log) if self._launch.log else "",
            timeout_s=self._launch.timeout_s,
            disk_full=self._disk_full,
            leftovers=self._leftovers,
            unwatched=self._unwatched.found(),
            child_failure=child_failure(folder),
            guardian_failure=self._guard.failure() if self._guard is not None else "",
            recordings=recordings(folder),
            parent_version=__version__,
        )

    def _for_the_guardian(self) -> dict[str, object]:
        launch = self._launch
        return {
            "folder": str(launch.folder.absolute()),
            "mark": self._mark,
            "command": list(launch.command),
            "log": str(launch.log.absolute()) if launch.log else "",
            "started": self._started.isoformat(timespec="seconds"),
            "start_s": self._start_s,
            "timeout_s": launch.timeout_s,
            "remove_cache": not launch.watch.keep_cache,
            "oom_counter": str(self._oom.path) if self._oom else "",
            "oom_before": self._oom.before if self._oom else 0,
            "harness": __version__,
        }

    def _pass_on(self, number: int, *, again: bool) -> bool:
        """Pass on a signal that we got; the second one ends the program at once.

        Returns:
            Whether the program still ran.
        """
        process = self._running()
        if process.poll() is not None:
            return False
        if again and self._ending:
            self._signal_tree(signal.SIGKILL)
        elif again:
            self._hurried, self._kill_at = True, time.monotonic()
        elif number == signal.SIGINT:  # a terminal's Ctrl-C reaches the whole foreground group
            self._kill_at = time.monotonic() + _INTERRUPT_GRACE_S
            self._signal_tree(number)
        else:  # it is in a signal handler's way to look at stacks
            self._to_tell = number
        return True

    def _tell_to_end(self) -> None:
        """Pass on the signal by which we were told to end, after a look at what it disturbs."""
        number, self._to_tell = self._to_tell, None
        process = self._running()
        stacks = take_stacks(process.pid, self._launch.folder, _TOLD_LOOK_S)
        if number is None or process.poll() is not None:
            return
        self._told, self._stacks = number, stacks
        self._kill_at = time.monotonic() + _TERMINATE_GRACE_S
        self._sent.append(number)
        process.send_signal(number)

    def _say_that_we_wait(self) -> None:
        """After Ctrl-C: a program that hangs says nothing, and somebody sits before it."""
        now = time.monotonic()
        if self._interrupted_s is None:
            self._interrupted_s = now
        if now - self._interrupted_s > _SAY_AFTER_S:
            self._interrupted_s = float("inf")  # once
            text = (
                f"interrupted: the program has {_INTERRUPT_GRACE_S:.0f} s to end by itself; "
                "Ctrl-C again ends it now"
            )
            tell(text)

    def _look_before_the_end(self) -> None:
        """Take the stacks of a program that does not end though it was asked to."""
        if not self._stacks.taken:
            self._stacks = take_stacks(self._running().pid, self._launch.folder, _TOLD_LOOK_S)

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def _window(self) -> float:
        return min(_IDLE_WINDOW_S, self._launch.timeout_s / 2)

    def _activity(self) -> Activity:
        return Activity.now(self._running().pid, self._launch.folder)

    def _at_deadline(self) -> None:
        process = self._running()
        # Nothing to compare with: a tick took all of the last seconds.
        idle = None if self._before is None else self._activity().idle_since(self._before)
        stacks = take_stacks(process.pid, self._launch.folder)
        if process.poll() is not None:  # it ended just now, by itself
            return
        self._deadline_hit, self._idle, self._stacks = True, idle, stacks
        self._end_now()

    def _before_the_end(self, faults: str) -> tuple[str, list[ThreadWait]]:
        """The stacks before we ended it, and who waited for what; the child's own if need be."""
        stacks = self._stacks
        if not self._deadline_hit or stacks.taken or not faults:
            return stacks.text, stacks.waits
        text = f"{stacks.text}; the program's own faulthandler wrote:\n{faults}"
        return text, waits_of_faults(faults, self._running().pid)

    def _crashed_by_faulthandler(self, number: int | None, faults: Faults) -> bool:
        """Whether writing the stacks just before the deadline is what crashed the program."""
        near = self._end_s > self._deadline - DEADLINE_DUMP_S
        return number is not None and number not in FROM_OUTSIDE and near and bool(faults.deadline)

    def _end_now(self) -> None:
        """SIGTERM, so that the program can still save something, then SIGKILL.

        SIGKILL at once where somebody has asked twice.
        """
        self._deadline, self._kill_at, self._ending = float("inf"), float("inf"), True
        process = self._running()
        kinds = ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, None))
        for number, grace in kinds[self._hurried :]:
            self._signal_tree(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
                break
        self._end_s = time.monotonic()

    def _signal_tree(self, number: int) -> None:
        self._sent.append(number)
        signal_group(self._running().pid, number)

    def _killed_from_outside(self, number: int | None) -> bool:
        if self._told is not None:
            return True
        return number in FROM_OUTSIDE and number not in self._sent
