"""The order that a schedule asks for, as a state machine without threads, clocks or torch.

A schedule is an ordered list of holds. A thread that arrives at a hold passes it once all holds
before it in the list have been passed, and waits until then; between its holds a thread runs
freely, with one exception: a thread that is known to play a part and whose next hold lies behind
dynamo's compile lock waits for its turn *before* the lock. Inside it would keep out those that have
to go first, and a schedule that can be met would end as impossible whenever the wrong thread was
faster. Whoever drives this machine keeps its calls apart (the controller's condition does).
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

#: Points that a hold can name, in the order in which a call of compiled code can meet them.
POINTS = (
    "step",
    "phase",
    "wrapper",
    "guard_miss",
    "lock_wait",
    "dynamo_compile",
    "backend_call",
    "fx_trace",
    "joint_trace",
    "backward_compile",
    "autotune",
    "block_mask",
    "dense_attention",
)
EDGES = ("enter", "exit")
MAIN = "main"

#: Where a thread is about to acquire the compile lock.
AT_LOCK = ("lock_wait", "enter")
#: Inside of these a thread has the compiler's process-wide state set.
COMPILER = frozenset(
    {
        "dynamo_compile",
        "backend_call",
        "fx_trace",
        "joint_trace",
        "backward_compile",
    }
)
# A lazy backward compile takes the lock, if at all, only inside of itself: inductor's does
# (torch/_inductor/compile_fx.py, torch 2.13.0).
_BEHIND_LOCK = COMPILER - {"backward_compile"}

_THREAD = re.compile(r"main|t[1-9][0-9]{0,5}|[A-Z]")
_HOLD = re.compile(r"(?P<thread>\w+):(?P<point>\w+):(?P<edge>\w+)(?:#(?P<nth>[1-9][0-9]{0,5}))?")


@dataclass(frozen=True, slots=True)
class Hold:
    """One place where a thread waits for its turn.

    Attributes:
        thread: ``main``; ``t3``, the third thread that the program started; or a capital letter,
            which stands for whichever thread but the main one comes to that letter's first hold
            first. Two letters are never the same thread.
        point: one of ``POINTS``.
        edge: ``enter`` or ``exit``.
        nth: the so manieth arrival there, counted from the thread's hold before this one.
    """

    thread: str
    point: str
    edge: str = "enter"
    nth: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError, in one line, for a hold that cannot be."""
        if not _THREAD.fullmatch(self.thread):
            raise ValueError(f"no thread is called {self.thread!r}: main, t1, t2 ... or A to Z")
        if self.point not in POINTS:
            raise ValueError(f"there is no point {self.point!r}: {', '.join(POINTS)}")
        if self.edge not in EDGES:
            raise ValueError(f"a hold is at enter or exit, not at {self.edge!r}")
        if self.nth < 1:
            raise ValueError(f"arrivals are counted from 1, not from {self.nth}")

    def __str__(self) -> str:
        nth = f"#{self.nth}" if self.nth > 1 else ""
        return f"{self.thread}:{self.point}:{self.edge}{nth}"

    @classmethod
    def parse(cls, text: str) -> "Hold":
        """Read ``A:fx_trace:enter`` or ``t2:wrapper:exit#3``. Raises ValueError."""
        match = _HOLD.fullmatch(text)
        if match is None:
            raise ValueError(f"not a hold: {text!r}; THREAD:POINT:EDGE, as in A:fx_trace:enter")
        return cls(match["thread"], match["point"], match["edge"], int(match["nth"] or 1))

    @property
    def is_variable(self) -> bool:
        """Whether any thread can play this part."""
        return len(self.thread) == 1

    @property
    def is_behind_lock(self) -> bool:
        """Whether a thread comes here inside dynamo's compile lock, as a rule."""
        return self.point in _BEHIND_LOCK or (self.point, self.edge) == ("lock_wait", "exit")


class Order:
    """How far a schedule has got.

    Attributes:
        holds: the schedule.
        bound: which thread plays which part, by the part's name.
    """

    def __init__(self, holds: Iterable[Hold]) -> None:
        self.holds = tuple(holds)
        self.bound: dict[str, int] = {}
        self._next = 0
        self._parts: dict[str, list[int]] = {}
        for number, hold in enumerate(self.holds):
            self._parts.setdefault(hold.thread, []).append(number)
        self._counts: dict[tuple[str, int], int] = {}
        self._plays: dict[int, str] = {}

    @property
    def reached(self) -> int:
        """How many holds have been passed."""
        return self._next

    @property
    def done(self) -> bool:
        """Whether all holds have been passed."""
        return self._next == len(self.holds)

    def arrive(self, tid: int, label: str, point: str, edge: str) -> int | None:
        """A thread is at a point; return the number of the hold that it has come to, if any.

        Args:
            tid: the thread's native id.
            label: ``main``, ``t1`` ...: which of the program's threads it is; empty if it is none
                that the program started.
            point: where it is.
            edge: on which side.
        """
        part = self._plays.get(tid)
        if part is None:
            if label in self._parts:
                part = self._take(label, tid)
            else:
                return self._audition(tid, label, point, edge)
        left = self._parts[part]
        if not left or not self._counts_up(part, left[0], tid, point, edge):
            return None
        return left.pop(0)

    def ahead_of_lock(self, tid: int, point: str, edge: str) -> int | None:
        """Number of the hold whose turn a thread has to wait for before it takes the compile lock.

        To be asked after ``arrive``, and once the hold that the thread came to there is passed.
        """
        left = self._parts[self._plays[tid]] if tid in self._plays else []
        if (point, edge) != AT_LOCK or not left or self.may_pass(left[0]):
            return None
        hold = self.holds[left[0]]
        to_come = hold.nth - self._counts.get((hold.thread, tid), 0)
        # One acquisition is one compile: an earlier one than the one meant is none of ours.
        if not hold.is_behind_lock or (hold.point == "dynamo_compile" and to_come > 1):
            return None
        return left[0]

    def may_pass(self, number: int) -> bool:
        """Whether the thread at hold ``number`` may go on."""
        return number <= self._next

    def pass_(self, number: int) -> None:
        """The thread at hold ``number`` goes on. Raises ValueError if it is not its turn."""
        if number != self._next:
            raise ValueError(f"hold {number} is not the next one, {self._next} is")
        self._next += 1

    def next_thread(self) -> int | None:
        """Who has to come to the next hold; None if anybody may, or nobody has to."""
        return None if self.done else self.bound.get(self.holds[self._next].thread)

    def is_impossible(self, waiting: Collection[int], blocked: Mapping[int, int]) -> bool:
        """Whether the thread that has the next turn can never take it.

        Args:
            waiting: the threads that wait at a hold.
            blocked: threads that wait for a lock, each with the thread that owns the lock.
        """
        thread = self.next_thread()
        return thread is not None and _ends_in(thread, waiting, blocked)

    def _take(self, part: str, tid: int) -> str:
        self.bound[part] = tid
        self._plays[tid] = part
        return part

    def _audition(self, tid: int, label: str, point: str, edge: str) -> int | None:
        """A thread without a part takes the first free one whose first hold it is at."""
        if label == MAIN:
            return None
        for part, left in self._parts.items():
            free = left and self.holds[left[0]].is_variable and part not in self.bound
            if free and self._counts_up(part, left[0], tid, point, edge):
                return self._parts[self._take(part, tid)].pop(0)
        return None

    def _counts_up(self, part: str, number: int, tid: int, point: str, edge: str) -> bool:
        """Count an arrival if it is at hold ``number``; return whether that is the one meant."""
        hold = self.holds[number]
        if (hold.point, hold.edge) != (point, edge):
            return False
        count = self._counts.get((part, tid), 0) + 1
        if count < hold.nth:
            self._counts[part, tid] = count
            return False
        self._counts.pop((part, tid), None)
        return True


def _ends_in(thread: int, waiting: Collection[int], blocked: Mapping[int, int]) -> bool:
    """Whether following who owns what a thread waits for ends at a thread held, or in a ring."""
    seen = set()
    while thread in blocked and thread not in seen:
        seen.add(thread)
        thread = blocked[thread]
    return bool(seen) and (thread in waiting or thread in seen)
