"""Printing to a reader who may leave before the end, such as ``head``."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """Go on quietly when whoever reads the standard output has closed it."""
    try:
        yield
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # rich makes the second of the first
        # Python flushes once more at exit, which must not fail either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
