"""From what the parent asks for to a controller."""

from collections.abc import Mapping
from typing import Any

from ..recorder import Recorder, Scheduler
from .controller import Controller
from .delays import Delays
from .order import Hold
from .priorities import Priorities


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
