"""How every command ends: its exit code, one line for an error of use, no traceback for Ctrl-C."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from dflash_min import standard_streams
from dflash_min.cli import fail
from dflash_min.command import tell_of_output
from dflash_min.errors import OutputError, UsageError
from harness import interrupts
from harness.exits import ExitCode


class Command(Protocol):
    """A command's ``main``: its arguments (the process's if left out) to its exit code."""

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command. Raises SystemExit(2) after one line on stderr for errors of use."""


def command(prog: str) -> Callable[[Callable[[list[str]], int]], Command]:
    """Make a command of a function of its arguments.

    The function may raise UsageError, which becomes one line on stderr and exit code 2, or
    OutputError, which becomes one and exit code 3, unless stdout's reader is gone, and be
    interrupted from the keyboard, which becomes exit code 130. Streams that are closed, and a
    stderr that takes nothing more, change nothing.

    Args:
        prog: the command's name, for the line.
    """

    def wrap(main: Callable[[list[str]], int]) -> Command:
        @functools.wraps(main)
        @standard_streams.usable()
        def run(argv: Sequence[str] | None = None) -> int:
            interrupts.be_usual()
            try:
                return main(sys.argv[1:] if argv is None else list(argv))
            except UsageError as error:
                fail(prog, str(error))
            except OutputError as error:
                tell_of_output(prog, error)
                return ExitCode.FAILED
            except KeyboardInterrupt:
                return ExitCode.INTERRUPTED

        return run

    return wrap
