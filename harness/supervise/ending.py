"""What is left on the disk of a program's end: faulthandler's texts, failures, a full disk."""

import contextlib
import errno
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from harness.child.boot import FAILURE
from harness.child.session import FAULTS
from harness.supervise.folder import tail

# Signals that people, schedulers and the kernel's out-of-memory killer send; no crash raises them.
FROM_OUTSIDE = frozenset(
    {
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    }
)

# Headings of CPython's Modules/faulthandler.c; a second one may come in the middle of a line.
_HEADING = re.compile(r"Fatal Python error: (.+)")
_HEADINGS = {
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating-point exception": signal.SIGFPE,
    "Floating point exception": signal.SIGFPE,
    "Aborted": signal.SIGABRT,
    "Segmentation fault": signal.SIGSEGV,
}

_FAULT_BYTES = 256 * 1024
_PROBE = ".disk-probe"
_PROBE_BYTES = 4096
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class Faults:
    """What faulthandler wrote: at a fatal signal, and shortly before the deadline."""

    fatal: str = ""
    deadline: str = ""

    def first_signal(self, number: int | None) -> int | None:
        """The signal that ended the process, given the one that its exit status tells.

        They differ where faulthandler itself crashed while it wrote about the first, which is the
        reason for the end: its heading comes first in the file.
        """
        if number is None or number not in _HEADINGS.values():
            return number
        told = [_HEADINGS[name] for name in _HEADING.findall(self.fatal) if name in _HEADINGS]
        return told[0] if len(told) > 1 and told[-1] == number else number


def take_faults(folder: Path) -> Faults:
    """Read the main process's file of faulthandler's and remove those that are empty."""
    text = tail(folder / FAULTS, _FAULT_BYTES)
    for path in folder.glob(FAULTS.replace(".", "*.")):
        with contextlib.suppress(OSError):
            if not path.stat().st_size:
                path.unlink()
    return Faults(*split_faults(text))


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


def child_failure(folder: Path) -> str:
    """Why the watch did not attach or stopped, if the child wrote that down."""
    return tail(folder / FAILURE)


def signal_name(number: int | None) -> str:
    """``SIGTERM`` for 15; empty for None."""
    if number is None:
        return ""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def disk_full(folder: Path) -> bool:
    """Whether a page can no longer be written to the folder: no space, no quota.

    Asked of the disk itself, since free space as ``statvfs`` tells it knows nothing of quotas.
    """
    probe = folder / f"{_PROBE}.{os.getpid()}"
    try:
        probe.write_bytes(b"\0" * _PROBE_BYTES)
    except OSError as error:
        return error.errno in _FULL
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)
    return False
