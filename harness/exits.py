"""Exit codes shared by every harness command."""

import enum


class ExitCode(enum.IntEnum):
    """What a harness command's exit status means.

    Where several hold, the order of precedence is FAILED, FOUND, INCOMPLETE, CLEAN.
    """

    CLEAN = 0
    FOUND = 1
    USAGE = 2
    FAILED = 3
    INCOMPLETE = 4
    NOTHING_RAN = 5
    INTERRUPTED = 130
