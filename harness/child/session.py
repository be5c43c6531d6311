"""A watched process from its start to its end: exit handlers, forks, fatal signals."""

import atexit
import faulthandler
import functools
import os
import time
from collections.abc import Callable
from typing import NoReturn

from .attach import Attachment
from .leaving import Leaving
from .privacy import mask
from .recorder import Recorder

FAULTS = "faulthandler.txt"
# The parent takes stacks at the deadline; the child writes its own a little earlier, in case the
# parent has no right to look into it.
DEADLINE_DUMP_S = 1.0


class Session:
    """Ends the recording when the interpreter ends, whichever way it does so in Python."""

    def __init__(self, recorder: Recorder, attachment: Attachment) -> None:
        self._recorder = recorder
        self._attachment = attachment
        self._leaving = Leaving()
        self._ended_in = -1

    def start(self) -> None:
        """Register the handlers."""
        self._recorder.at_fork(after_in_child=self._recorder.after_fork)
        # Registered first of all, so run last of all, after what the program registers.
        atexit.register(self.end)
        self._leaving.watch()
        exit_now = os._exit

        def _exit(status: int) -> NoReturn:
            # Scripts that fear a hang at exit end like this, and no exit handler runs then.
            self.end()
            exit_now(status)

        _exit.__doc__ = exit_now.__doc__
        os._exit = _exit

    @property
    def recorder(self) -> Recorder:
        """The process's event log."""
        return self._recorder

    def idle_probes(self) -> list[str]:
        """The probes that have had nothing to patch by now."""
        return self._attachment.waiting()

    def warmup_done(self) -> None:
        """Record that the program says its warm-up is over."""
        self._recorder.emit("phase", {"name": "warmup_done"})

    def end(self) -> None:
        """Run what the probes have left for the end, then write the last event. Never raises."""
        try:
            self._end()
        except Exception:  # noqa: BLE001 - the program is ending; its exit status is what matters
            self._recorder.lost += 1

    def _end(self) -> None:
        recorder = self._recorder
        # Once a process: a fork is another one. One that had nothing to say stays without a file.
        if recorder.quiet or self._ended_in == os.getpid():
            return
        self._ended_in = os.getpid()
        for hook in recorder.at_end:
            try:
                hook()
            except Exception as error:  # noqa: BLE001 - the other hooks still have to run
                self._attachment.report(name_at_end(hook), "failed", repr(error)[:500])
        self._attachment.report_idle()
        recorder.record_left_out()
        if recorder.lost:
            reason = f"{recorder.lost} events could not be written"
            self._attachment.report("recorder", "failed", reason)
        recorder.record_end(mask(self._leaving.text))


def name_at_end(hook: Callable[[], object]) -> str:
    """What the report calls the part of the watch that has left a hook for the end."""
    while isinstance(hook, functools.partial):
        hook = hook.func
    module = str(getattr(hook, "__module__", None) or "the watch")
    return f"{module.rpartition('.')[2]} at the end"


def catch_fatal_signals(folder: str, deadline: float | None, *, main: bool) -> None:
    """Have faulthandler write every thread's stack to the run folder when a fatal signal arrives.

    A program that has enabled its own faulthandler, or does so later, keeps it.

    Args:
        folder: the run folder.
        deadline: ``time.monotonic()`` at which the parent ends the program; the stacks are also
            written one second before.
        main: this is the run's main process; each other one gets a file of its own.

    Only signals that end the process in any case are caught: faulthandler walks the stacks of
    threads that run meanwhile, and now and then it crashes in doing so.
    """
    name = FAULTS if main else FAULTS.replace(".", f"-{os.getpid()}.")
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(os.path.join(folder, name), flags, 0o600)  # noqa: PTH118
    if not faulthandler.is_enabled():
        faulthandler.enable(descriptor, all_threads=True)
    if deadline is not None:
        left = deadline - time.monotonic() - DEADLINE_DUMP_S
        if left > 0:
            faulthandler.dump_traceback_later(left, file=descriptor)
