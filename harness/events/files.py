"""The files of a run folder: their names, how to find them, how to write one whole.

``events.jsonl`` is the main process's recording, ``events-PID.jsonl`` another process's, and
``steady-PID-NUMBER.jsonl`` a segment of a process's steady events. The child, which stands alone,
has these names itself.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

EVENTS = "events.jsonl"
RUN = "run.json"
ENDED = "ended.json"
GUARDIAN_FAILURE = "guardian-failure.txt"
HARNESS_FAILURE = "harness-failure.txt"
CHILD_LOG = "child.log"
CACHE = "cache"
TORCH_TRACE = "torch_trace"

MAX_WHOLE = 64 << 20
"""What ``run.json`` and ``ended.json`` never come near, stacks of hundreds of threads included."""

_OTHERS = "events-*.jsonl"
_SEGMENTS = "steady-*.jsonl"


def events_of(folder: Path, pid: int) -> Path:
    """The recording of a process other than the main one."""
    return folder / f"events-{pid}.jsonl"


def event_files(folder: Path) -> list[Path]:
    """Every process's recording that is there, the main process's first."""
    main = folder / EVENTS
    return [*([main] if main.exists() else ()), *sorted(folder.glob(_OTHERS))]


def recordings(folder: Path) -> dict[str, int]:
    """Every process's recording that is there, by its name, with its size in bytes."""
    found = {}
    for path in event_files(folder):
        with contextlib.suppress(OSError):
            found[path.name] = path.stat().st_size
    return found


def segments(folder: Path) -> list[Path]:
    """The segments of steady events that are still there, each process's oldest first."""
    return sorted(folder.glob(_SEGMENTS), key=lambda path: segment_number(path) or (path.stem, 0))


def segment_number(path: Path) -> tuple[str, int] | None:
    """Whose segment a file is and which, counted from 1; None for a name that no recorder gives."""
    process, _, number = path.stem.rpartition("-")
    return (process, int(number)) if number.isdecimal() and number.isascii() else None


class NotAFileError(OSError):
    """What has a recording's name is a folder, a pipe or a device."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading, and nothing else: a pipe would wait for a writer for ever.

    Raises OSError; NotAFileError is one.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotAFileError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_whole(path: Path) -> bytes:
    """Read a small file. Raises OSError, also for one that is too large to be what it should be."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MAX_WHOLE:
            raise OSError(errno.EFBIG, "it is too large", str(path))
        return file.read()


PRIVATE = 0o600
"""Mode of a run folder's files: they hold parts of the environment and of the program's texts."""


def write_whole(path: Path, text: str, mode: int = PRIVATE) -> None:
    """Write a file so that a reader sees all of it or what was there before. Raises OSError."""
    with writing_whole(path, mode) as file:
        file.write(text)


@contextlib.contextmanager
def writing_whole(path: Path, mode: int = PRIVATE) -> Iterator[IO[str]]:
    """Open a file to be written piece by piece, which takes its name only once it is complete.

    Args:
        path: where it is to be.
        mode: its permissions, less those that the umask takes away.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with open(descriptor, "w", encoding="utf-8", newline="\n") as file:  # noqa: PTH123
            yield file
        partial.replace(path)
    except OSError as error:
        if error.filename is not None:  # whoever reads it knows the file by its own name
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
