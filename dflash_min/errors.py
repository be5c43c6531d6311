"""The one error that is the user's to mend."""

from __future__ import annotations


class UsageError(ValueError):
    """The user asked for something that cannot be run; the message is one line."""
