"""The learning rate over a training, as a share of its peak: a linear rise, then a cosine to 0.

This is the schedule of the DFlash paper (arXiv 2602.06036, A.1), where 0.04 of the steps rise.
"""

from __future__ import annotations

import math


def lr_share(step: int, steps: int, warmup: float) -> float:
    """Return the share of a step (from 0) of a training of so many steps.

    Args:
        step: the one whose update it is for.
        steps: of the whole training.
        warmup: share of the steps, rounded up, over which it rises; the last of them has the peak.
    """
    rise = math.ceil(warmup * steps)
    return rise_and_fall(step + 1 if step < rise else step, rise, steps)


def rise_and_fall(done: float, rise: float, end: float = 1.0) -> float:
    """Return the share when `done` of `end` is over, in steps, in time, or as shares of the whole.

    Args:
        done: 0 to below `end`.
        rise: where the peak is, 0 to `end`.
        end: where the share is 0 again.
    """
    if done < rise:
        return done / rise
    if done == rise:  # which may be the end, too
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (done - rise) / (end - rise)))
