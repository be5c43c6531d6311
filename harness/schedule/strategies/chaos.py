"""Random delays: discovery only, since nothing makes the same order come again."""

from collections.abc import Iterator
from itertools import count

from harness.schedule.plan import Delays, Schedule


class Chaos:
    """Random delays from seeds that follow on each other."""

    name = "chaos"

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    def describe(self) -> str:
        """Say that it promises nothing."""
        return f"random delays at points from seed {self._seed} on: for discovery, no guarantee"

    def schedules(self) -> Iterator[Schedule]:
        """Yield delays, without end."""
        for seed in count(self._seed):
            yield Delays(seed)
