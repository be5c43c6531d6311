"""Random priorities, with a bound on the chance of missing a bug."""

from collections.abc import Iterable, Iterator
from itertools import count

from harness.schedule.arrivals import Arrival, after_warmup
from harness.schedule.plan import Priorities, Schedule


class Pct:
    """Random priorities from seeds that follow on each other.

    Each run finds a bug that shows when ``depth`` arrivals come in one order with a chance of at
    least 1/(n k^(d-1)), n threads, k arrivals, d the depth: Burckhardt et al., "A Randomized
    Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010. That holds for threads
    that only points can order.
    """

    name = "pct"

    def __init__(self, threads: int, points: int, depth: int = 3, seed: int = 0) -> None:
        """Make a strategy. Raises UsageError for numbers that cannot be."""
        self._first = Priorities(seed, threads, points, depth)

    @classmethod
    def of(cls, found: Iterable[Arrival], depth: int = 3, seed: int = 0) -> "Pct":
        """For a recorded run: as many threads and arrivals as it had after warm-up."""
        late = list(after_warmup(found))
        threads = {arrival.thread for arrival in late}
        return cls(max(len(threads), 1), max(len(late), 1), depth, seed)

    @property
    def one_in(self) -> int:
        """The guarantee of one run is 1 in so many."""
        first = self._first
        return int(first.threads * first.points ** (first.depth - 1))

    def chance(self, runs: int) -> float:
        """The least chance that one of ``runs`` runs finds a bug of this depth."""
        return float(1 - (1 - 1 / self.one_in) ** runs)

    def describe(self) -> str:
        """State the guarantee with its numbers."""
        first = self._first
        return (
            f"random priorities, n={first.threads} threads, k={first.points} arrivals, "
            f"d={first.depth}: each run finds a bug of that depth with a chance of at least "
            f"1/(n*k^(d-1)) = 1/{self.one_in}"
        )

    def schedules(self) -> Iterator[Schedule]:
        """Yield priorities, without end."""
        first = self._first
        for seed in count(first.seed):
            yield Priorities(seed, first.threads, first.points, first.depth)
