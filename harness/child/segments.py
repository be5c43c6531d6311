"""Events that come all night, in files of bounded size, of which the newest are kept."""

import contextlib
import os

from .log import Log

STEADY = "steady"
SEGMENTS = 8


class Segments:
    """A process's steady events. Calls are made one at a time."""

    def __init__(self, folder: str, max_bytes: int) -> None:
        self._folder = folder
        self._size = max(max_bytes // SEGMENTS, 1 << 16)
        self._log: Log | None = None
        self._number = 0
        self._left = 0

    def write(self, line: bytes) -> None:
        """Append a line, making room for it if need be. Raises OSError."""
        if self._log is None or self._left < len(line):
            self._log = self._next()
        self._left -= len(line)
        self._log.write(line)

    def begin_anew(self) -> None:
        """Leave the files to the process that this one was forked from."""
        if self._log is not None:
            self._log.close()
        self._log, self._left, self._number = None, 0, 0

    def _next(self) -> Log:
        if self._log is not None:
            self._log.close()
        self._number += 1
        self._left = self._size
        oldest = self._number - SEGMENTS
        if oldest > 0:
            with contextlib.suppress(FileNotFoundError):  # somebody else made room
                os.unlink(self._path(oldest))  # noqa: PTH108
        log = Log(self._path(self._number))
        log.open()
        return log

    def _path(self, number: int) -> str:
        name = f"{STEADY}-{os.getpid()}-{number:06d}.jsonl"
        return os.path.join(self._folder, name)  # noqa: PTH118 - few imports in the child
