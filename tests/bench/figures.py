"""What the benches share: medians with their intervals, counts with theirs, and the machine."""

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence

RESAMPLES = 2000
#: The 97.5th percentile of the normal distribution, for intervals of 95 %.
Z = 1.959964


def interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = statistics.median,
    seed: int = 0,
) -> tuple[float, float]:
    """The 95 % interval of a statistic, by the percentile bootstrap (Efron 1979)."""
    chance = random.Random(seed)
    found = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return found[int(0.025 * RESAMPLES)], found[int(0.975 * RESAMPLES) - 1]


def wilson(hits: int, runs: int) -> tuple[float, float]:
    """The 95 % interval of a share of counted runs (Wilson 1927)."""
    if not runs:
        return 0.0, 1.0
    share, spread = hits / runs, Z * Z / runs
    centre = (share + spread / 2) / (1 + spread)
    half = Z / (1 + spread) * (share * (1 - share) / runs + spread / runs / 4) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def machine(torch_version: str, device: str) -> str:
    """Where figures were taken, in one line; ``load`` is that of the last minute."""
    return (
        f"torch {torch_version}, python {platform.python_version()}, {device}, "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC"
    )
