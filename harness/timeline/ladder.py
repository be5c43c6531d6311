"""A thread's ladder: what it did, in order, the middle of a long one left out."""

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Rung:
    """A step of a thread's ladder: what it did, when, and for how long."""

    t0: int
    what: str
    detail: str
    seq: int
    t1: int | None = None
    span: bool = False


RUNGS = 60


@dataclass(slots=True)
class Ladder:
    """What a thread did, in order: its first and last ``kept`` steps."""

    kept: int = RUNGS
    head: list[Rung] = field(default_factory=list)
    tail: deque[Rung] | list[Rung] = field(default_factory=list)
    left_out: int = 0

    def add(self, rung: Rung) -> None:
        """Append a step."""
        if len(self.head) < self.kept:
            self.head.append(rung)
            return
        if not self.tail:  # an empty deque takes more room than all else of a thread
            self.tail = deque(maxlen=self.kept)
        self.left_out += len(self.tail) == self.kept
        self.tail.append(rung)

    def rungs(self) -> list[Rung]:
        """The steps kept, in order."""
        return sorted([*self.head, *self.tail], key=lambda rung: rung.t0)
