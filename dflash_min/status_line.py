"""The line on stderr that says how far a command is."""

from __future__ import annotations

import contextlib
import sys


class StatusLine:
    """A line that is rewritten on a terminal; elsewhere now and then another one is added."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._rewritten = False

    def update(self, line: str, *, due: bool) -> None:
        """Say how far it is; off a terminal only if a line is due."""
        if self._live:
            self._rewritten = True
            self._show(f"\r{line}\x1b[K")
        elif due:
            self._show(f"{line}\n")

    def add(self, line: str) -> None:
        """Say something in a line of its own, which stays."""
        self._show(f"\r{line}\x1b[K\n" if self._live else f"{line}\n")
        self._rewritten = False

    def end(self) -> None:
        """Leave the rewritten line to what is said after it."""
        if self._rewritten:
            self._show("\n")
        self._rewritten = False

    def _show(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a terminal that is gone takes no work along
            print(text, end="", file=sys.stderr, flush=True)
