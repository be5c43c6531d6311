"""Which named plans apply to a program: those whose places two of its threads really came to."""

from collections.abc import Iterable, Sequence
from itertools import permutations

from harness.child.schedule.order import MAIN, Hold
from harness.schedule.arrivals import Arrival, after_warmup
from harness.schedule.plan import Plan


def missing(plan: Plan, found: Iterable[Arrival]) -> str:
    """Why a plan of letters does not apply; empty if it does.

    It applies if, after the warm-up, for each letter another thread came to that letter's holds in
    their order. ``found`` has implied arrivals too (see ``harness.schedule.arrivals.arrivals``).
    """
    of: dict[str, list[Arrival]] = {}
    for arrival in after_warmup(found):
        if arrival.thread != MAIN:
            of.setdefault(arrival.thread, []).append(arrival)
    reached = {arrival.place for own in of.values() for arrival in own}
    never = dict.fromkeys(h.point for h in plan.holds if (h.point, h.edge) not in reached)
    if never:
        return f"after the warm-up no thread came to {', '.join(never)}"
    needed = [[h for h in plan.holds if h.thread == part] for part in plan.threads]
    able = [{t for t, own in of.items() if _comes_by(own, holds)} for holds in needed]
    for threads in permutations(sorted(of), len(needed)):
        if all(thread in who for thread, who in zip(threads, able, strict=True)):
            return ""
    return f"no {len(needed)} threads came to its points in its order after the warm-up"


def _comes_by(own: Sequence[Arrival], holds: Sequence[Hold]) -> bool:
    """Whether a thread's arrivals hold a part's, in order, each the so manieth that it names."""
    at = 0
    for hold in holds:
        left = hold.nth
        while left and at < len(own):
            left -= own[at].place == (hold.point, hold.edge)
            at += 1
        if left:
            return False
    return True
