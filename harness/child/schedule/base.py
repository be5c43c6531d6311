"""What all schedulers share: they name threads, never fail the program, and end where it ends."""

import os
import threading
from typing import TYPE_CHECKING, Any

from ..recorder import Recorder
from .labels import Labels

if TYPE_CHECKING:
    from collections.abc import Callable

#: A thread is never made to wait inside a guard evaluation: ``torch._dynamo.reset()`` in another
#: thread would free what it evaluates. It waits at the next point instead.
NEVER_HELD = frozenset({"guard_miss"})
#: At the program's end other threads may be stuck for good.
_CONCLUDE_S = 1.0


class BaseScheduler:
    """A ``recorder.Scheduler`` of one process; what it does at a point is its subclass's.

    Attributes:
        blocked: threads that wait for a lock, by native id, each with a function that says who
            owns the lock now (None: nobody). Written by the lock probe, each entry by its thread.
            The owner is asked for when it matters: the one that a thread began to wait for has
            long passed the lock on.
    """

    def __init__(self, recorder: Recorder) -> None:
        """Make one that does nothing until ``_begin``."""
        self.blocked: dict[int, Callable[[], int | None]] = {}
        self._recorder = recorder
        # Re-entrant: a signal handler of the program's can come to a point in here.
        self._condition = threading.Condition()
        self._labels = Labels()
        self._off = True

    def number_thread(self, thread: threading.Thread) -> None:
        """The program starts ``thread``: it is the next of ``t1``, ``t2`` ... ."""
        with self._condition:
            self._labels.number(thread)

    def reach(self, point: str, edge: str) -> None:
        """The calling thread is at a point; return when it may go on. Never raises."""
        if self._off:
            return
        try:
            self._reach(point, edge)
        except Exception:  # noqa: BLE001 - the program must run whatever becomes of its schedule
            self._off = True
            self._recorder.lost += 1

    def conclude(self) -> None:
        """The program ends: say how far the schedule has got."""
        if self._off or not self._condition.acquire(timeout=_CONCLUDE_S):
            return
        try:
            if not self._off:
                self._conclude()
        finally:
            self._condition.release()

    def _begin(self) -> None:
        """To be called once all is set up."""
        self._off = False
        self._recorder.at_end.append(self.conclude)
        # A schedule is of one process: its threads are not in a fork.
        os.register_at_fork(after_in_child=self._forget)
        # A process that dies leaves this behind: its schedule was not reached.
        self._say("begun")

    def _reach(self, point: str, edge: str) -> None:
        """What ``reach`` does; it may raise."""
        raise NotImplementedError

    def _conclude(self) -> None:
        """The program ends; to be called with the condition held."""
        self._stop("done")

    def _state(self) -> dict[str, Any]:
        """How far the schedule has got, besides its state and the reason for that."""
        raise NotImplementedError

    def _stop(self, state: str, reason: str = "") -> None:
        """End the schedule and release whoever waits."""
        self._off = True
        self._say(state, reason)
        self._condition.notify_all()

    def _say(self, state: str, reason: str = "") -> None:
        self._recorder.emit("schedule", {"state": state, "reason": reason, **self._state()})

    def _forget(self) -> None:
        self._condition = threading.Condition()
        self._off = True
