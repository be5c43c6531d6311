"""What can end a run: a mistake of the user, or another thread's error."""

from __future__ import annotations


class UsageError(ValueError):
    """The user asked for something that cannot be run; the message is one line."""


class Stopped(Exception):  # noqa: N818  # not an error of the thread that it ends
    """Raised in a thread that waits for others while the pipeline stops."""
