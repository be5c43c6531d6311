"""From what the parent asks for to a controller."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..recorder import Recorder
from .controller import Controller
from .delays import Delays
from .order import Hold
from .priorities import Priorities


class Scheduler(Protocol):
    """What probes talk to: a ``Controller``, ``Priorities`` or ``Delays``.

    Attributes:
        blocked: the threads that wait for a lock, each with a function that returns the native id
            of the lock's owner now, or None.
    """

    blocked: dict[int, Callable[[], int | None]]

    def number_thread(self, thread: threading.Thread) -> None:
        """The program starts a thread; called before it runs."""

    def reach(self, point: str, edge: str) -> None:
        """The calling thread is at a point. Never raises."""


def make_scheduler(
    recorder: Recorder, asked: Mapping[str, Any], *, patience_s: float
) -> Scheduler | None:
    """Make what ``harness.schedule.plan.Schedule.for_child`` describes; None for no holds.

    Only one process of a run may have it: holds are of one process's threads.

    Args:
        recorder: the process's recorder.
        asked: ``strategy`` (``pct``, ``chaos``, or anything else for ``holds``) and its settings.
        patience_s: see ``Controller``.

    Raises:
        ValueError: for a hold that cannot be.
    """
    match asked.get("strategy"):
        case "pct":
            names = ("seed", "threads", "points", "depth")
            return Priorities(recorder, **{name: int(asked[name]) for name in names})
        case "chaos":
            return Delays(recorder, seed=int(asked["seed"]))
        case _:
            holds = [Hold.parse(text) for text in asked.get("holds", ())]
            apart = bool(asked.get("apart"))
            if not holds:
                return None
            return Controller(recorder, holds, patience_s=patience_s, apart=apart)
