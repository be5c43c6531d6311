"""How fast the processor was while something ran, so that a slower one adds nothing to its time.

A core of a shared host is a hardware thread whose other half belongs to somebody else. With nothing
else running there, a cold compile's Python took 1.5 to 2.2 s of processor time, pass by pass (seven
passes on a machine with an H200; user time, in every phase of the compiler alike). So
while the work runs it is interrupted after every few milliseconds of processor time for a short
walk, always the same one, and its time is divided by how much longer those walks took than those of
the first pass. Of a spread of 5.4 % between passes beside other work that leaves 3.2 % (two cores,
40 passes).
"""

import contextlib
import random
import signal
import statistics
import time

import torch

EVERY_S = 0.005
STEPS = 200
#: With their dictionaries 1.5 MB, in no order: like a compiler's objects they do not fit into the
#: first cache.
STONES = 4000


class _Stone:
    __slots__ = ("next", "said")

    def __init__(self, number):
        self.said = {f"stone {number}": number}
        self.next = self


class Pace(contextlib.AbstractContextManager):
    """Looks at the processor's pace in its context. For the main thread, one at a time."""

    def __init__(self):
        stones = [_Stone(number) for number in range(STONES)]
        random.Random(0).shuffle(stones)
        for stone, after in zip(stones, [*stones[1:], stones[0]], strict=True):
            stone.next = after
        self._at = stones[0]
        self._before = None
        # Dynamo would take the walk for a frame of the program's, and compile it.
        self._handler = torch.compiler.disable(lambda *_: self.looks.append(self._walk()))
        self.looks = []
        self._first_ns = None

    def _walk(self):
        """Nanoseconds of the thread's processor time for the next steps around the ring."""
        start = time.thread_time_ns()
        stone = self._at
        for _ in range(STEPS):
            for key in stone.said:
                stone.said[key]
            stone = stone.next
        self._at = stone
        return time.thread_time_ns() - start

    def __enter__(self):
        self.looks.clear()
        self._before = signal.signal(signal.SIGPROF, self._handler)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        return self

    def __exit__(self, *_):
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._before)

    def even(self, spent_ns):
        """What the last context's work took of ``spent_ns``, at the pace of the first one asked."""
        if not self.looks:
            return spent_ns
        look_ns = statistics.fmean(self.looks)
        if self._first_ns is None:
            self._first_ns = look_ns
        return (spent_ns - sum(self.looks)) * self._first_ns / look_ns
