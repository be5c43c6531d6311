"""Random priorities with change points: of the threads that could go on, only the highest does.

The algorithm is that of Burckhardt, Kothari, Musuvathi and Nagarakatti, "A Randomized Scheduler
with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010, with arrivals at points for its steps.
"""

import random
import time
from typing import Any

from ..recorder import Recorder
from .base import NEVER_HELD, BaseScheduler

_TICK_S = 0.01


class Priorities(BaseScheduler):
    """Lets threads go on by priority.

    Each thread gets a random priority at its first arrival, in the order of arrival of threads,
    and there are ``depth - 1`` change points among the first ``points`` arrivals: the thread that
    makes such an arrival falls below all others. A thread waits while one with a higher priority
    runs. One that has come to no point for ``quiet_s``, or waits for a lock, counts as blocked,
    as does, after ``longest_s``, one that only ever passes by: nobody waits for ever.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        seed: int,
        threads: int,
        points: int,
        depth: int,
        quiet_s: float = 0.25,
        longest_s: float = 10.0,
    ) -> None:
        """Make a controller for ``threads`` threads that make some ``points`` arrivals in all."""
        super().__init__(recorder)
        self._quiet_s = quiet_s
        self._longest_s = longest_s
        self._random = random.Random(seed)  # noqa: S311 - a schedule has to be repeatable
        self._free = list(range(depth, depth + threads))
        self._random.shuffle(self._free)
        changes = self._random.sample(range(1, max(points, depth - 1) + 1), depth - 1)
        self._changes = {arrival: depth - 1 - n for n, arrival in enumerate(changes)}
        self._priority: dict[int, float] = {}
        self._waiting: set[int] = set()
        #: When each thread last went on from a point.
        self._went_on: dict[int, float] = {}
        self._arrivals = 0
        self._changed = 0
        self._begin()

    def _reach(self, point: str, edge: str) -> None:
        del edge
        tid = self._recorder.local.tid
        with self._condition:
            self._labels.of_caller(tid)
            self._count(tid)
            if point not in NEVER_HELD:
                self._wait(tid)
            self._went_on[tid] = time.monotonic()
            self._condition.notify_all()

    def _count(self, tid: int) -> None:
        if tid not in self._priority:
            # More threads than were announced come below those, in order of arrival.
            late = -float(len(self._priority))
            self._priority[tid] = self._free.pop() if self._free else late
        self._arrivals += 1
        lower = self._changes.get(self._arrivals)
        if lower is not None:
            self._priority[tid] = lower
            self._changed += 1

    def _wait(self, tid: int) -> None:
        until = time.monotonic() + self._longest_s
        self._waiting.add(tid)
        try:
            while not self._off and time.monotonic() < until and self._outranked(tid):
                self._condition.wait(_TICK_S)
        finally:
            self._waiting.discard(tid)

    def _outranked(self, tid: int) -> bool:
        own, now = self._priority[tid], time.monotonic()
        return any(
            priority > own and self._goes_on(other, now)
            for other, priority in self._priority.items()
        )

    def _goes_on(self, tid: int, now: float) -> bool:
        if tid in self._waiting:
            return True
        if tid in self.blocked or self._labels.has_ended(tid):
            return False
        return now - self._went_on.get(tid, now) < self._quiet_s

    def _state(self) -> dict[str, Any]:
        return {
            "strategy": "pct",
            "arrivals": self._arrivals,
            "changes": self._changed,
            "arrived": len(self._priority),
        }
