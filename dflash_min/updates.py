"""Between two steps: when all replicas' weights belong to one step, and keeping them there."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from dflash_min.errors import NotFiniteError, Stopped

if TYPE_CHECKING:
    from collections.abc import Iterator


class Updates:
    """Counts each replica's optimiser steps, and can hold all replicas between two of them.

    The replicas' weights change only inside of `update`, which no replica enters before all have
    made their gradients, nor for a next step before all have left it.
    """

    def __init__(self, replicas: int, done: int) -> None:
        """Begin with `done` finished steps on each replica."""
        self._done = [done] * replicas
        self._inside = 0
        self._held = self._broken = False
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def update(self, rank: int) -> Iterator[None]:
        """Surround a replica's optimiser step.

        Raises:
            Stopped: after `hold`.
        """
        with self._changed:
            if self._held:
                raise Stopped
            self._inside += 1
        finished = broken = False
        try:
            yield
            finished = True
        except NotFiniteError:
            raise  # it has changed nothing
        except BaseException:
            broken = True
            raise
        finally:
            with self._changed:
                self._inside -= 1
                self._done[rank] += finished
                self._broken |= broken
                self._changed.notify_all()

    def hold(self, timeout: float) -> int | None:
        """Let no replica enter another update, from a moment between two steps on.

        Args:
            timeout: seconds to wait for updates that some replicas have begun or finished and
                others have not.

        Returns:
            How many steps are finished; None if it did not come to such a moment, as after an error
            in the middle of an update.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._broken or self._between_steps(), timeout)
            if self._broken or not self._between_steps():
                return None
            self._held = True
            return self._done[0]

    def finished(self, step: int) -> bool:
        """Return whether all replicas have finished a step, which is counted from 0."""
        with self._changed:
            return min(self._done) > step

    def _between_steps(self) -> bool:
        return not self._inside and len(set(self._done)) == 1
