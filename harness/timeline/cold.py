"""Cold starts: several threads called compiled code before any entry existed."""

import itertools
import math
from collections.abc import Sequence

from harness.timeline.history import CodeHistory
from harness.timeline.model import Uncovered
from harness.timeline.reasons import Guard


def cold_calls(history: CodeHistory) -> list[Uncovered]:
    """Compiling calls that began before any entry existed, in order; found once for a history.

    For a recording read to its end.
    """
    if history.cold is None:
        history.cold = _find(history)
    return history.cold


def cold_started(history: CodeHistory) -> bool:
    """Whether several threads cold-started it."""
    return len({call.tid for call in cold_calls(history)}) >= 2


def _find(history: CodeHistory) -> list[Uncovered]:
    ends = [c.t1 for c in history.compiles if c.made_entry and c.t1 is not None]
    first = min(ends, default=None)
    calls = [call for call in history.uncovered if _found_nothing(call, first)]
    threads = {call.tid for call in calls}
    if first is None and len(threads) > 1 and not _overlap(calls):
        return []
    return sorted(calls, key=lambda call: call.t)


def _found_nothing(call: Uncovered, first: int | None) -> bool:
    """Whether a call began before the first entry existed, at time ``first``, and compiled."""
    if call.compile is None:
        return False
    # Torch gives reasons only for entries that the call was checked against.
    rejected = any(Guard.UNEXPECTED not in reason.guards for reason in call.compile.reasons)
    return first is None or call.t < first or (call.no_entry and not rejected)


def _overlap(calls: Sequence[Uncovered]) -> bool:
    """Whether any two of the calls were under way at once, in different threads."""
    under_way: dict[int, float] = {}  # by thread, the latest end of those that began before
    for t, began in itertools.groupby(sorted(calls, key=_began), key=_began):
        group = list(began)
        for call in group:
            if any(tid != call.tid and t < end for tid, end in under_way.items()):
                return True
        for call in group:
            end = call.compile.t1 if call.compile else call.t
            under_way[call.tid] = max(
                math.inf if end is None else end, under_way.get(call.tid, -math.inf)
            )
    return False


def _began(call: Uncovered) -> int:
    return call.t
