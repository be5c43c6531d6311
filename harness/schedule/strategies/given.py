"""One plan, from a file, a token or the list of named plans."""

from collections.abc import Iterator

from harness.schedule.plan import Schedule


class Given:
    """Runs a schedule ``times`` times."""

    name = "given"

    def __init__(self, schedule: Schedule, times: int = 1) -> None:
        self._schedule = schedule
        self._times = times

    def describe(self) -> str:
        """Say what is run."""
        times = "once" if self._times == 1 else f"{self._times} times"
        return f"{self._schedule}, {times}"

    def schedules(self) -> Iterator[Schedule]:
        """Yield the schedule, again and again."""
        for _ in range(self._times):
            yield self._schedule
