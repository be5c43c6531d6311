"""Short random delays at points: they find races, and prove nothing."""

import random
import time
from typing import Any

from ..recorder import Recorder
from .base import NEVER_HELD, BaseScheduler


class Delays(BaseScheduler):
    """Sleeps at some arrivals, before the thread goes on.

    Each thread draws from a sequence of its own, made from the seed and the thread's name, so what
    one thread does is the same in every run with that seed. (Threads without a name share one.)
    """

    def __init__(
        self, recorder: Recorder, *, seed: int, share: float = 0.5, longest_s: float = 0.02
    ) -> None:
        """Delay a ``share`` of arrivals by up to ``longest_s`` seconds each."""
        super().__init__(recorder)
        self._seed = seed
        self._share = share
        self._longest_s = longest_s
        self._draws: dict[str, random.Random] = {}
        self._arrivals = 0
        self._delayed = 0
        self._begin()

    def _reach(self, point: str, edge: str) -> None:
        del edge
        delay_s = 0.0 if point in NEVER_HELD else self._draw()
        if delay_s:
            time.sleep(delay_s)

    def _draw(self) -> float:
        with self._condition:
            label = self._labels.of_caller(self._recorder.local.tid)
            draws = self._draws.get(label)
            if draws is None:
                # Text seeds are hashed with SHA-512, so they do not differ between processes.
                draws = self._draws[label] = random.Random(f"{self._seed} {label}")  # noqa: S311
            self._arrivals += 1
            if draws.random() >= self._share:
                return 0.0
            self._delayed += 1
            return draws.uniform(0.0, self._longest_s)

    def _state(self) -> dict[str, Any]:
        return {
            "strategy": "chaos",
            "arrivals": self._arrivals,
            "changes": self._delayed,
            "arrived": len(self._draws),
        }
