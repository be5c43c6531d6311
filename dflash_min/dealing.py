"""Which target makes which batch and which drafter takes it, so that nobody waits for ever.

Batches are numbered over the whole run (`Resolved.batch_number`). Each target makes, and each
drafter takes, its batches in ascending order, and each pair of them has a queue of its own. So the
lowest number that nobody has taken can always move on: its drafter has taken all that it takes
before, and is at no meeting, since no step before that batch's is unfinished; its target has made
all that it makes before, and these have been taken, so that nothing is in its way in the queue:
what was taken last keeps no place in an empty one (`Channel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dflash_min.resolve import Resolved


def maker(resolved: Resolved, number: int) -> int:
    """Return which target makes a batch: they take turns."""
    return number % len(resolved.layout.targets)


def made_by(resolved: Resolved, target: int, start: int) -> range:
    """Return the numbers of the batches that a target makes, in order, from step `start` on."""
    targets = len(resolved.layout.targets)
    begin, end = (resolved.batch_number(step, 0, 0) for step in (start, resolved.steps))
    return range(begin + (target - begin) % targets, end, targets)


def taken_by(resolved: Resolved, rank: int, step: int) -> list[int]:
    """Return the numbers of the batches that a drafter takes in a step, in order."""
    return [resolved.batch_number(step, rank, micro) for micro in range(resolved.accumulate)]
