"""The control of a plan: the same holds, and no thread in the middle of another's."""

from collections.abc import Iterator

from harness.schedule.plan import Plan, Schedule, serial


class Serial:
    """Runs a plan's control ``times`` times. It must be clean, or the harness is the bug."""

    name = "serial"

    def __init__(self, plan: Plan, times: int = 1) -> None:
        self._plan = serial(plan)
        self._times = times

    def describe(self) -> str:
        """Say what is run."""
        return f"the threads one after the other: {self._plan}"

    def schedules(self) -> Iterator[Schedule]:
        """Yield the control, again and again."""
        for _ in range(self._times):
            yield self._plan
