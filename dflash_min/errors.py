"""What can end a run: a mistake of the user, what the training came to, or another thread's end."""

from __future__ import annotations


class UsageError(ValueError):
    """The user asked for something that cannot be run; the message is one line."""


class TrainingError(RuntimeError):
    """A run cannot go on, and no code is at fault; the message is one line."""


class NotFiniteError(TrainingError):
    """A loss or a gradient is nan or infinite. Raised before any weight has changed by it."""


class SaveError(TrainingError):
    """A state or a measurement cannot be saved; what was saved before is as it was."""


class MemoryLimitError(TrainingError):
    """There is not enough memory for what was asked for."""


class OutputError(Exception):
    """Stdout takes nothing more; the cause is the OSError."""


class Stopped(Exception):  # noqa: N818  # not an error of the thread that it ends
    """Raised in a thread that waits for others while the pipeline stops."""


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, its type if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)
