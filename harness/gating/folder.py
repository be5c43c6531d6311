"""The gate's folder: one gate at a time, and nothing of an earlier one left in it."""

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from dflash_min.errors import UsageError

GATE_JSON, JUNIT, SUMMARY, RUNS = "gate.json", "junit.xml", "summary.md", "runs"
_LOCK = ".gate.lock"
_FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: OSError) -> bool:
    """Whether an error says that the disk is full."""
    return error.errno in _FULL


@contextlib.contextmanager
def gate_folder(out: Path) -> Iterator[Path]:
    """Make and hold a folder, and remove what an earlier gate wrote there.

    Yields:
        The folder, absolute.

    Raises:
        UsageError: it cannot be written to, or another gate holds it.
    """
    out = out.absolute()
    try:
        out.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(out / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot write to the output folder {out}: {_reason(error)}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            whose = f" (process {holder})" if holder else ""
            raise UsageError(f"another gate{whose} writes to {out}: give this one --out") from error
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            _clear(out)
        except OSError as error:
            raise UsageError(
                f"cannot write to the output folder {out}: {_reason(error)}"
            ) from error
        yield out
    finally:
        os.close(descriptor)


def _clear(out: Path) -> None:
    for name in (GATE_JSON, JUNIT, SUMMARY):
        (out / name).unlink(missing_ok=True)
    if (out / RUNS).exists():
        shutil.rmtree(out / RUNS)
    (out / RUNS).mkdir()


def _reason(error: OSError) -> str:
    return "the disk is full" if is_full(error) else error.strerror or type(error).__name__
