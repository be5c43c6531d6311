"""Standard streams that a command was started without, as by `>&-`, or that take nothing more."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def usable() -> Iterator[None]:
    """Let a command print whatever its standard streams are; none of them changes its exit code.

    Python has None for a stream whose descriptor was closed when it started (documentation of
    `sys.__stdout__`): stdout and stderr then go nowhere while the block runs. Stdin stays None.
    What stderr has not taken by the end of the block is dropped.
    """
    _occupy_closed()
    with contextlib.ExitStack() as stack:
        if sys.stdout is None:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(_nowhere())))
        if sys.stderr is None:
            stack.enter_context(contextlib.redirect_stderr(stack.enter_context(_nowhere())))
        try:
            yield
        finally:
            try:
                sys.stderr.flush()
            except OSError:
                drop(sys.stderr)


def tell(line: str) -> None:
    """Print a line on stderr, if that takes it: no work ends because nobody hears of it."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def drop(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, or the interpreter fails at it at its exit."""
    with contextlib.suppress(OSError, ValueError):  # it has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _nowhere() -> TextIO:
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # a device


def _occupy_closed() -> None:
    """Keep files that are opened from now on off closed standard descriptors.

    What native code prints would be written into them. Programs that are started get the
    descriptors closed, as we did: those of `os.open` are not inherited (PEP 446).
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, by POSIX: this one
