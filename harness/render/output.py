"""Printing to a reader who may leave before the end: ``head``, or a terminal that vanishes."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

# A pipe whose reader has left, and a terminal that has vanished.
_GONE = frozenset({errno.EPIPE, errno.EIO})


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Go on quietly when whoever reads the standard output has closed it."""
    try:
        yield
        sys.stdout.flush()
    except (OSError, SystemExit) as error:
        # Rich makes a SystemExit of a broken pipe (Console.on_broken_pipe); any other is meant.
        cause = error.__context__ if isinstance(error, SystemExit) else error
        if not isinstance(cause, OSError) or cause.errno not in _GONE:
            raise
        # Python flushes once more at exit, which must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
