"""What the events of a schedule say."""

from typing import Literal

import msgspec

from harness.events.values import Int


class HoldPassData(msgspec.Struct, frozen=True, kw_only=True):
    """``hold``, the schedule's ``number``-th counted from 0, was passed after ``waited_s``."""

    number: Int
    hold: str
    waited_s: float = 0.0


class ScheduleData(msgspec.Struct, frozen=True, kw_only=True):
    """How far a schedule got. ``begun`` is written first; if it is the last, the process died.

    Of holds: ``reached`` of ``holds`` were passed, ``next`` is the one that was not, ``threads``
    says which native thread played which part. Of random priorities and delays (``strategy`` pct
    or chaos): ``arrivals`` at points, by ``arrived`` threads, and ``changes`` of priority, or
    delays.
    """

    state: Literal["begun", "done", "impossible", "not reached"]
    reason: str = ""
    strategy: str = "holds"
    reached: Int = 0
    holds: tuple[str, ...] = ()
    next: str = ""
    threads: dict[str, Int] = {}
    arrivals: Int = 0
    arrived: Int = 0
    changes: Int = 0
