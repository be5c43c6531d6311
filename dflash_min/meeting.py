"""Where threads wait for each other."""

from __future__ import annotations

import threading

from dflash_min.errors import Stopped


class Meeting:
    """Lets threads go on when all of them have come, again and again.

    As `threading.Barrier`, but for its end: a meeting that all have come to lets all of them go on,
    also those that wake when it has been broken off meanwhile. A barrier's late wakers are told
    that it is broken, while others have gone on.
    """

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._here = self._held = 0
        self._over = False
        self._changed = threading.Condition()

    def wait(self) -> None:
        """Wait until all are here.

        Raises:
            Stopped: if `abort` comes before that.
        """
        with self._changed:
            if self._over:
                raise Stopped
            mine = self._held
            self._here += 1
            if self._here == self._parties:
                self._here = 0
                self._held += 1
                self._changed.notify_all()
            self._changed.wait_for(lambda: self._held > mine or self._over)
            if self._held == mine:
                raise Stopped

    def abort(self) -> None:
        """End every wait, present and future, that not all have come to."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
