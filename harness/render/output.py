"""Printing to a reader who may leave before the end, or to a disk that may be full."""

import contextlib
import errno
import sys
from collections.abc import Callable, Iterator
from typing import TextIO

from dflash_min.errors import OutputError
from dflash_min.standard_streams import drop

# A pipe whose reader has left, and a terminal that has vanished.
_GONE = frozenset({errno.EPIPE, errno.EIO})


@contextlib.contextmanager
def reader_may_leave(
    *, kept: Callable[[str], None] | None = None, out: TextIO | None = None
) -> Iterator[None]:
    """Go on quietly when whoever reads what the block prints has closed it.

    Args:
        kept: where what is printed is in files too, says in a line that it cannot be printed.
        out: what is printed to; standard output if left out.

    Raises:
        OutputError: if it takes nothing more though it has a reader, as on a full disk, unless
            ``kept`` is given.
    """
    stream = sys.stdout if out is None else out
    try:
        yield
        stream.flush()
    except (OSError, SystemExit) as error:
        # Rich makes a SystemExit of a broken pipe (Console.on_broken_pipe); any other is meant.
        cause = error.__context__ if isinstance(error, SystemExit) else error
        if not isinstance(cause, OSError) or cause.filename is not None:
            raise  # a file that could not be opened is not the stream
        gone = cause.errno in _GONE
        if isinstance(error, SystemExit) and not gone:
            raise
        # Python flushes once more at exit, which must not fail either.
        drop(stream)
        if gone:
            return
        reason = cause.strerror or str(cause)
        if kept is None:
            raise OutputError(reason) from cause
        kept(f"the report cannot be printed: {reason}")
