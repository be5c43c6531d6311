"""How many there were of what is recorded more and more thinly."""

from collections.abc import Iterable

from harness.timeline.model import DenseCall


def dense_total(calls: Iterable[DenseCall]) -> int:
    """How many dense calls there were, a lower bound within a factor of two."""
    most: dict[int, int] = {}
    for call in calls:
        most[call.tid] = max(most.get(call.tid, 0), call.count)
    return sum(most.values())
