"""From what the flags ask for to a strategy."""

from collections.abc import Callable
from pathlib import Path

from harness.schedule.arrivals import arrivals
from harness.schedule.options import ScheduleOptions
from harness.schedule.outcome import Runner
from harness.schedule.plan import Plan
from harness.schedule.strategies import Strategy
from harness.schedule.strategies.chaos import Chaos
from harness.schedule.strategies.enumerate import Enumerate
from harness.schedule.strategies.given import Given
from harness.schedule.strategies.pct import Pct
from harness.timeline.recording import Recording


def make_strategy(
    options: ScheduleOptions, runner: Runner, folder: Path, say: Callable[[str], None]
) -> Strategy:
    """The strategy; for those that need it, made from the recording of one run with no schedule.

    Args:
        options: the flags.
        runner: runs the program.
        folder: where the runner's run folders are.
        say: takes one line on what the run with no schedule came to.

    Raises:
        UsageError: the program cannot be started.
        OSError: the recording cannot be read.
    """
    asked = options.asked()
    if asked is not None:
        return Given(asked)
    if options.strategy == "chaos":
        return Chaos(options.search_seed)
    outcome = runner.run(Plan(), 0)
    found = arrivals(Recording(folder / outcome.folder))
    say(f"with no schedule: {outcome.headline or outcome.verdict}")
    if options.strategy == "pct":
        return Pct.of(found, seed=options.search_seed)
    return Enumerate(found, bound=options.explore)
