"""Makes threads wait at holds, and knows when waiting has become pointless.

The controller writes no state of torch's: a thread that it releases does what it would have done.
Nothing waits for ever: the threads that wait look, themselves, whether anything still moves.
"""

import time
from collections.abc import Sequence
from typing import Any

from ..recorder import Recorder
from .base import NEVER_HELD, BaseScheduler
from .cpu_time import helpers_cpu_s, thread_cpu_s
from .order import COMPILER, Hold, Order

_TICK_S = 0.02
_OWED = "hold owed"
#: Below this part of one core a process does nothing.
_BUSY = 0.05
#: So many times the patience is a busy process waited for.
_LONGEST = 12
#: Points at whose enter a thread goes inside something and at whose exit it comes out again.
_BRACKETS = COMPILER | {"block_mask", "dense_attention"}
#: A thread that has passed a hold gets so long to go on from there before another one passes the
#: next: what it does right behind the hold, reading a flag, say, is what it was sent for.
_HEAD_START_S = 0.01
#: On a busy machine it may not run meanwhile: it gets so much CPU time as well,
_HEAD_START_CPU_S = 0.002
#: and so long for that at most, since it may sleep.
_LONGEST_START_S = 0.25


class Controller(BaseScheduler):
    """The holds of one process."""

    def __init__(
        self, recorder: Recorder, holds: Sequence[Hold], *, patience_s: float, apart: bool = False
    ) -> None:
        """Make a controller.

        Args:
            recorder: takes the events ``hold`` and ``schedule``.
            holds: the schedule.
            patience_s: seconds without a move (no arrival anywhere, next to no CPU used) after
                which the next hold counts as not reached. A process that computes, or whose threads
                come to other points, has twelve times that for each hold.
            apart: before a hold of another thread, wait until the thread of the hold before it is
                out of everything that it was inside of there (a compile, a trace). An ``exit`` is
                reached with torch's state still as it is inside, so it is out by its next arrival.
                Where it does not come out, the next hold counts as impossible if it cannot, and
                otherwise as not reached.
        """
        super().__init__(recorder)
        self._order = Order(holds)
        self._patience_s = patience_s
        self._waiting: dict[int, int] = {}
        self._apart = apart
        self._inside: dict[int, int] = {}
        #: Threads that are inside of something for as long as they stay where they arrived last.
        self._at_inside: set[int] = set()
        #: The thread that passed a hold, at the time ``_passed``, and has not gone on from it.
        self._leaving: int | None = None
        self._passed = 0.0
        self._passed_cpu: float | None = None
        self._arrived = time.monotonic()
        self._mark = (self._arrived, time.process_time())
        self._helpers: float | None = None
        #: Since when somebody waits for the next hold.
        self._wanted: float | None = None
        if self._order.holds:
            self._begin()

    def _conclude(self) -> None:
        """The program ends, and holds are left that nobody came to."""
        if self._leaving is not None:
            self._go_on()
        self._stop("not reached", "the program ended")

    def _reach(self, point: str, edge: str) -> None:
        local = self._recorder.local
        tid = local.tid
        with self._condition:
            self._moved()
            self._follow(tid, point, edge)
            number = self._order.arrive(tid, self._labels.of_caller(tid), point, edge)
            owed = local.scratch.pop(_OWED, None)
            if owed is not None:
                self._wait(owed, tid)
                self._pass(owed)
            if number is not None and point in NEVER_HELD and not self._order.may_pass(number):
                local.scratch[_OWED] = number
                return
            if number is not None:
                self._pass(number, self._wait(number, tid))
            ahead = self._order.ahead_of_lock(tid, point, edge)
            if ahead is not None:
                self._wait(ahead, tid)

    def _wait(self, number: int, tid: int) -> float:
        """Wait for the turn of hold ``number``; return the seconds that it took."""
        began = time.monotonic()
        # A signal handler may come here while its thread already waits for another hold.
        before = self._waiting.get(tid)
        self._waiting[tid] = number
        try:
            while not self._off and not self._order.may_pass(number):
                if self._wanted is None:
                    self._wanted = time.monotonic()
                self._condition.wait(_TICK_S)
                self._look()
        finally:
            if before is None:
                del self._waiting[tid]
            else:
                self._waiting[tid] = before
        return time.monotonic() - began

    def _pass(self, number: int, waited_s: float = 0.0) -> None:
        """Take the turn of hold ``number`` and wake the others."""
        if self._off:
            return
        self._wanted = None
        self._moved()
        holds = self._order.holds
        data = {"number": number, "hold": str(holds[number]), "waited_s": round(waited_s, 4)}
        self._recorder.emit("hold", data)
        following = holds[number + 1 : number + 2]
        if following and following[0].thread != holds[number].thread:
            self._leaving, self._passed = self._recorder.local.tid, time.monotonic()
            self._passed_cpu = thread_cpu_s(self._leaving)
        else:
            self._go_on()

    def _go_on(self) -> None:
        """The turn is the next hold's."""
        self._leaving = None
        self._order.pass_(self._order.reached)
        if self._order.done:
            self._stop("done")
        self._condition.notify_all()

    def _follow(self, tid: int, point: str, edge: str) -> None:
        """Keep count of what a thread is inside of."""
        depth = self._inside.get(tid, 0)
        if tid == self._leaving and not (self._apart and depth):
            self._go_on()
        at_edge = point in _BRACKETS
        if at_edge:
            self._inside[tid] = max(depth + (1 if edge == "enter" else -1), 0)
        (self._at_inside.add if depth or at_edge else self._at_inside.discard)(tid)

    def _look(self) -> None:
        """Give up if the next hold cannot be reached any more, or nothing moves."""
        if self._leaving is not None:
            self._look_after_leaving(self._leaving)
            return
        if self._off or any(self._order.may_pass(number) for number in self._waiting.values()):
            return  # somebody goes on in a moment
        hold = self._order.holds[self._order.reached]
        tid = self._order.next_thread()
        if self._order.is_impossible(self._waiting, self._owners()):
            self._stop("impossible", f"{hold} needs a lock whose owner is held")
        elif tid is not None and self._labels.has_ended(tid):
            self._stop("not reached", "its thread has ended")
        else:
            self._look_at_the_clock()

    def _look_after_leaving(self, tid: int) -> None:
        """Go on without a thread that has ended, or that waits itself, or takes long to leave.

        Where the plan keeps threads apart, one that is still inside of something ends it.
        """
        waits = tid in self._waiting
        stuck = waits or self._order.is_impossible(self._waiting, self._owners())
        since_s = time.monotonic() - self._passed
        if self._apart:
            late = since_s >= _LONGEST * self._patience_s or self._is_idle()
        else:
            late = since_s >= _HEAD_START_S and self._has_gone_on(tid, since_s)
        ended = self._labels.has_ended(tid)
        if not (stuck or late or ended):
            return
        self._moved()
        self._go_on()
        inside = tid in self._at_inside if waits else self._inside.get(tid, 0) > 0
        if self._apart and inside and not ended:
            passed, following = self._order.holds[self._order.reached - 1 :][:2]
            why = "waits itself" if stuck else f"was still inside after {since_s:.1f} s"
            self._stop(
                "impossible" if stuck else "not reached",
                f"{following} comes once the thread of {passed} is out of what it is inside of; "
                f"it {why}",
            )

    def _has_gone_on(self, tid: int, since_s: float) -> bool:
        """Whether the thread that passed the last hold has run since, or will not soon."""
        if since_s >= _LONGEST_START_S or tid in self.blocked:
            return True
        used, before = thread_cpu_s(tid), self._passed_cpu
        return used is None or before is None or used - before >= _HEAD_START_CPU_S

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        wanted_s = now - (now if self._wanted is None else self._wanted)
        if wanted_s >= _LONGEST * self._patience_s:
            self._stop("not reached", f"nobody came to it for {wanted_s:.1f} s")
        elif self._is_idle():
            self._stop("not reached", f"nothing moved for {now - self._arrived:.1f} s")

    def _is_idle(self) -> bool:
        """Whether for all the patience nobody arrived anywhere and next to no CPU was used."""
        since, used = self._mark
        now, cpu = time.monotonic(), time.process_time()
        if now - since < self._patience_s:
            return False
        helpers, before = helpers_cpu_s(), self._helpers
        least = _BUSY * (now - since)
        own = cpu - used > least
        if own or (helpers is not None and (before is None or helpers - before > least)):
            # It computes between two points, or its workers do: look again later.
            self._mark, self._helpers = (now, cpu), helpers
            return False
        return True

    def _owners(self) -> dict[int, int]:
        owners: dict[int, int] = {}
        for tid, owner_now in self.blocked.copy().items():
            owner = owner_now()
            if owner is not None and owner != tid:
                owners[tid] = owner
        return owners

    def _moved(self) -> None:
        self._arrived = time.monotonic()
        self._mark, self._helpers = (self._arrived, time.process_time()), None

    def _state(self) -> dict[str, Any]:
        order = self._order
        data: dict[str, Any] = {
            "reached": order.reached,
            "holds": [str(hold) for hold in order.holds],
            "threads": dict(order.bound),
        }
        if not order.done:
            data["next"] = str(order.holds[order.reached])
        return data
