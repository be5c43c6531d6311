"""Ctrl-C while a command is still importing what it needs: one line instead of a traceback."""

import contextlib
import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130  # harness.exits, which would be one more import


def be_brief() -> None:
    """Until ``be_usual``, let Ctrl-C end the process with one line and exit code 130.

    There is nothing yet to be undone. Where Ctrl-C is ignored or handled already, or this is not
    the main thread, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with contextlib.suppress(ValueError):  # not the main thread
            signal.signal(signal.SIGINT, _leave)


def be_usual() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether Python is just looking for the module that ``python -m`` names.

    ``sys.argv[0]`` is ``-m`` for as long as that takes (Python's documentation of ``-m``), and a
    package of the module's is imported meanwhile.
    """
    return sys.argv[:1] == ["-m"]


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    with contextlib.suppress(OSError):  # it is closed
        os.write(2, b"interrupted\n")
    os._exit(_INTERRUPTED)
