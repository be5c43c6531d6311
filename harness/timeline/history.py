"""Everything seen of one compiled code object in one process."""

import bisect
from array import array
from dataclasses import dataclass, field

from harness.events.values import CacheEntry, Code
from harness.timeline.model import Compile, Uncovered


@dataclass(slots=True)
class Sighting:
    """First and last event of one thread on one code object."""

    t0: int
    t1: int
    seq: int
    misses: int = 0


@dataclass(slots=True)
class CodeHistory:
    """Everything seen of one compiled code object in one process.

    ``autograd`` holds the process's threads that autograd started (see ``Thread.autograd``), and
    ``makers`` those that compiled it. ``folded`` are the times at which compiles began that are no
    longer kept one by one; ``gone``: when threads called it that are no longer told of one by one,
    of which the first compiler is none. ``entries_left_out``: so many entries at the end were not
    told. ``done``: when the program said that its warm-up was over, by its own mark.
    ``cold``: see ``harness.timeline.cold``.
    """

    code: Code
    compiles: list[Compile] = field(default_factory=list)
    uncovered: list[Uncovered] = field(default_factory=list)
    sightings: dict[int, Sighting] = field(default_factory=dict)
    entries_at_end: tuple[CacheEntry, ...] | None = None
    entries_left_out: int = 0
    autograd: set[int] = field(default_factory=set)
    makers: set[int] = field(default_factory=set)
    gone: list[tuple[int, int]] = field(default_factory=list)
    folded: "array[int]" = field(default_factory=lambda: array("q"))
    done: int | None = None
    cold: list[Uncovered] | None = None
    _warmup: list[Compile] | None = None
    _warm: dict[int, Compile] | None = None
    _begins: list[int] | None = None
    _ends: list[int] | None = None

    @property
    def compiles_seen(self) -> int:
        """How many compiles there were while it was watched."""
        return sum(not c.before for c in self.compiles) + len(self.folded)

    @property
    def first_compiler(self) -> int | None:
        """The thread whose compile of it began first."""
        return min(self.compiles, key=lambda c: c.t0).tid if self.compiles else None

    @property
    def warmup_end(self) -> int | None:
        """When its warm-up was over; None: never.

        The program may say when. Else it is when another thread than its first compiler began to
        call it.
        """
        if self.done is not None:
            return self.done
        first = self.first_compiler
        others = [
            seen.t0
            for tid, seen in self.sightings.items()
            if tid != first and tid not in self.autograd
        ]
        others += [t0 for t0, _ in self.gone[:1]]
        return min(others, default=None)

    def warmup(self) -> list[Compile]:
        """Compiles that began before its end. For a recording read to its end."""
        if self._warmup is None:
            end = self.warmup_end
            self._warmup = [c for c in self.compiles if end is None or c.t0 < end]
        return self._warmup

    def made_in_warmup(self, compile_: Compile | None) -> bool:
        """Whether a compile is one of ``warmup()``."""
        if self._warm is None:
            self._warm = {id(c): c for c in self.warmup()}
        return id(compile_) in self._warm

    def compiles_after_warmup(self) -> int:
        """How many compiles began once the warm-up was over."""
        end = self.warmup_end
        if end is None:
            return 0
        folded = sum(t >= end for t in self.folded)
        return sum(c.t0 >= end for c in self.compiles) + folded

    def entries_before(self, t: int) -> list[Compile]:
        """Compiles that had left an entry by time ``t``."""
        return [c for c in self.compiles if c.made_entry and c.t1 is not None and c.t1 <= t]

    def let_go(self, tids: set[int]) -> None:
        """Keep no more of these threads' intervals than that some threads called meanwhile."""
        seen = [self.sightings[tid] for tid in tids & self.sightings.keys()]
        if not seen:
            return
        gone = [(sighting.t0, sighting.t1) for sighting in seen]
        merged: list[tuple[int, int]] = []
        for t0, t1 in sorted([*self.gone, *gone]):
            if merged and t0 <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(t1, merged[-1][1]))
            else:
                merged.append((t0, t1))
        self.gone = merged
        self.sightings = {tid: s for tid, s in self.sightings.items() if tid not in tids}
        self.makers -= tids

    def meets_others(self, tid: int) -> bool:
        """Whether ``overlaps(tid)`` are any, those that were let go included.

        For a recording read to its end.
        """
        own = self.sightings.get(tid)
        if own is None:
            return False
        if self._begins is None or self._ends is None:
            others = [s for other, s in self.sightings.items() if other not in self.autograd]
            self._begins = sorted([*(s.t0 for s in others), *(t0 for t0, _ in self.gone)])
            self._ends = sorted([*(s.t1 for s in others), *(t1 for _, t1 in self.gone)])
        # Those that began before its end, less those that had ended before it began.
        number = bisect.bisect_right(self._begins, own.t1) - bisect.bisect_left(self._ends, own.t0)
        return number > 1

    def overlaps(self, tid: int) -> list[int]:
        """Other threads whose interval of calls of this code object meets that of ``tid``.

        Autograd's threads call on behalf of others: they are no others themselves, and meet others
        only where there are two, one of which they cannot be working for.
        """
        own = self.sightings.get(tid)
        if own is None:
            return []
        found = [
            other
            for other, seen in self.sightings.items()
            if other not in {tid, *self.autograd} and seen.t0 <= own.t1 and own.t0 <= seen.t1
        ]
        return found if tid not in self.autograd or len(found) > 1 else []
