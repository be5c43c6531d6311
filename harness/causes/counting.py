"""How many there were of what is recorded more and more thinly, each record with its count so far.

All are lower bounds, within a factor of two of what was counted: the last record of each kind has
the highest count, and some may have come after it.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Protocol, TypeVar

from harness.timeline.model import DenseCall, EagerCall, FlaggedCall


class _Counted(Protocol):
    count: int


CountedT = TypeVar("CountedT", bound=_Counted)


def dense_total(calls: Iterable[DenseCall]) -> int:
    """How many dense calls there were."""
    return _total(calls, lambda call: call.tid)


def eager_total(calls: Iterable[EagerCall]) -> int:
    """How many calls ran eager, of those that were followed: threads are not always looked at."""
    return _total(calls, lambda c: (c.tid, c.code.id, c.route, c.detail[:40], c.by))


def flagged_total(calls: Iterable[FlaggedCall]) -> int:
    """How many calls found the FX flag set."""
    return _total(calls, lambda call: (call.tid, call.nested))


def _total(records: Iterable[CountedT], kind: Callable[[CountedT], Hashable]) -> int:
    """The sum of the highest counts; ``kind``: what the recorder counts by."""
    most: dict[Hashable, int] = {}
    for record in records:
        key = kind(record)
        most[key] = max(most.get(key, 0), record.count)
    return sum(most.values())
