"""Short random delays at points: they find races, and prove nothing."""

import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any

from ..recorder import Recorder
from .controller import NEVER_HELD
from .labels import Labels

if TYPE_CHECKING:
    from collections.abc import Callable

_CONCLUDE_S = 1.0


class Delays:
    """Sleeps at some arrivals, before the thread goes on.

    Each thread draws from a sequence of its own, made from the seed and the thread's name, so what
    one thread does is the same in every run with that seed. (Threads without a name share one.)

    Attributes:
        blocked: as ``Controller.blocked``; not used.
    """

    def __init__(
        self, recorder: Recorder, *, seed: int, share: float = 0.5, longest_s: float = 0.02
    ) -> None:
        """Delay a ``share`` of arrivals by up to ``longest_s`` seconds each."""
        self.blocked: dict[int, Callable[[], int | None]] = {}
        self._recorder = recorder
        self._seed = seed
        self._share = share
        self._longest_s = longest_s
        self._lock = threading.RLock()
        self._labels = Labels()
        self._draws: dict[str, random.Random] = {}
        self._arrivals = 0
        self._delayed = 0
        self._off = False
        recorder.at_end.append(self.conclude)
        os.register_at_fork(after_in_child=self._forget)
        recorder.emit("schedule", self._state("begun"))

    def number_thread(self, thread: threading.Thread) -> None:
        """As ``Controller.number_thread``."""
        with self._lock:
            self._labels.number(thread)

    def reach(self, point: str, edge: str) -> None:
        """The calling thread is at a point: delay it perhaps. Never raises."""
        del edge
        if self._off or point in NEVER_HELD:
            return
        try:
            delay_s = self._draw()
        except Exception:  # noqa: BLE001 - the program must run whatever becomes of its schedule
            self._off = True
            self._recorder.lost += 1
            return
        if delay_s:
            time.sleep(delay_s)

    def conclude(self) -> None:
        """The program ends."""
        if self._off or not self._lock.acquire(timeout=_CONCLUDE_S):
            return
        try:
            self._off = True
            self._recorder.emit("schedule", self._state("done"))
        finally:
            self._lock.release()

    def _draw(self) -> float:
        with self._lock:
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

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._off = True

    def _state(self, state: str) -> dict[str, Any]:
        return {
            "state": state,
            "strategy": "chaos",
            "arrivals": self._arrivals,
            "changes": self._delayed,
            "arrived": len(self._draws),
        }
