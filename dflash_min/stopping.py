"""Ctrl-C, SIGTERM and SIGHUP: the work ends in order, and then the process by the same signal.

For commands. Whoever started one, a shell or a supervisor, sees what ended it: by POSIX, that a
process was ended by a signal shows only if the signal's default action ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

from dflash_min import standard_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    _Handler = Callable[[int, FrameType | None], object]

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signalled:
    """Whether a signal has asked for an end, and which."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def asked(self) -> bool:
        """Return whether to end now, for work that asks between its steps."""
        return self.signal is not None


@contextlib.contextmanager
def stopped_by_signals(
    stop: Callable[[], bool], words: Callable[[str], str]
) -> Iterator[Signalled]:
    """Let the first signal stop the work, and the second end the process at once.

    A signal that something else has a handler for, or that is ignored as under nohup, is left
    alone. So are all of them where this is not the main thread.

    Args:
        stop: called in the signal handler. Returns whether the work will now end by itself; if not,
            the process ends at once.
        words: returns the line to print then, given the signal's name.

    Yields:
        what tells, after the work, whether `end_by` is to follow.
    """
    signalled = Signalled()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        for each in before:
            signal.signal(each, signal.SIG_DFL)
        signalled.signal = signal.Signals(number)
        if not stop():
            # Not print: the signal may have interrupted one.
            with contextlib.suppress(OSError):
                os.write(2, f"{words(signalled.signal.name)}\n".encode())
            end_by(signalled.signal)

    before = _replace_defaults(handle)
    try:
        yield signalled
    finally:
        if signalled.signal is None:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def asked_by_signals() -> Iterator[Signalled]:
    """Let the first signal be seen by `Signalled.asked`, and the second end the process at once.

    Otherwise as `stopped_by_signals`.
    """
    with stopped_by_signals(lambda: True, str) as signalled:
        yield signalled


def say(line: str) -> None:
    """Print a last line on stderr, if that is still there: its end may be what is told of."""
    standard_streams.tell(line)


def end_by(number: signal.Signals) -> NoReturn:
    """End the process by a signal's default action."""
    _flush()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)  # it is blocked


def leave_threads(error: BaseException, number: signal.Signals | None) -> NoReturn:
    """End the process as an uncaught error does, but at once.

    The interpreter would wait at its exit for every thread that still runs, for ever for one that
    is stuck, and signals are not handled there.

    Args:
        error: what is shown, unless it is a SystemExit, whose code is then the process's.
        number: the signal that asked for the end, if one did, which then ends the process.
    """
    if not isinstance(error, SystemExit):
        sys.excepthook(type(error), error, error.__traceback__)
    if number is not None:
        end_by(number)
    _flush()
    code = error.code if isinstance(error, SystemExit) else 1
    os._exit(code if isinstance(code, int) else 1)


def _flush() -> None:
    for stream in filter(None, (sys.stdout, sys.stderr)):
        with contextlib.suppress(OSError, RuntimeError):  # gone; or it is just being written to
            stream.flush()


def _replace_defaults(handle: _Handler) -> dict[signal.Signals, _Handler | signal.Handlers]:
    """Handle the signals that nobody has said anything about; return what was set before."""
    before: dict[signal.Signals, _Handler | signal.Handlers] = {}
    if threading.current_thread() is not threading.main_thread():
        return before
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.SIG_DFL
        elif signal.getsignal(number) is signal.default_int_handler:
            before[number] = signal.default_int_handler
        else:
            continue
        signal.signal(number, handle)
    return before
