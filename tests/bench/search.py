"""What finding a race takes: ``python tests/bench/search.py --seeds 5 --budget-s 600 -j 2``.

On torch up to 2.12 the FX error of a call during another thread's compile (CR301), from 2.13 on
``is_compiling()`` read as True by eager code (CR304), each in ``repro/programs/two_threads.py``.
The search begins with no plan: with a recording of one run (enumerate, pct) or nothing (chaos).
``repeat`` is the program run again and again with no schedule, for the same budget. Printed for
each strategy and seed: schedules run and CPU seconds used, the recording's included, until the race
was found, and how often it came back in two replays. Each search ends once it has found the race,
so a strategy takes at most seeds x budget: 5 seeds take some 10 minutes on two free cores where all
is found soon, and up to an hour where one strategy finds nothing. Ctrl-C keeps what was measured.
"""

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import usage

from dflash_min.errors import UsageError
from harness.schedule.options import MOST_JOBS, ScheduleOptions
from harness.schedule.plan import Plan, Schedule
from harness.schedule.runner import ProcessRunner
from harness.schedule.search import Search, SearchOptions, children_cpu_s
from harness.schedule.strategies import Strategy
from harness.schedule.strategies.given import Given
from harness.schedule.strategies.make import make_strategy
from harness.supervise.interpreter import check_torch, inspect
from harness.supervise.launch import Launch, WatchSettings

PROGRAM = Path(__file__).resolve().parents[2] / "repro" / "programs" / "two_threads.py"
TIMEOUT_S = 300.0
MOST = 100_000
Name = Literal["enumerate", "pct", "chaos", "repeat"]
STRATEGIES: tuple[Name, ...] = ("enumerate", "pct", "chaos", "repeat")


@dataclass(frozen=True)
class Measured:
    """One search. ``runs`` and ``cpu_s``: until the race was found, or in all if it was not."""

    torch: str
    code: str
    strategy: Name
    seed: int
    found: bool
    runs: int
    cpu_s: float
    wall_s: float
    again: str = ""
    schedule: str = ""

    @property
    def said(self) -> str:
        """One line."""
        what = f"found after {self.runs} runs" if self.found else f"not found in {self.runs} runs"
        again = f", replayed {self.again}: {self.schedule}" if self.found else ""
        return (
            f"{self.strategy} seed {self.seed}: {self.code} {what}, {self.cpu_s:.0f} CPU s, "
            f"{self.wall_s:.0f} s{again}"
        )


class Bench:
    """Searches one program for one race."""

    def __init__(self, python: str, torch: str, budget_s: float, jobs: int) -> None:
        major, of, *_ = torch.split(".")
        old = (int(major), int(of)) < (2, 13)
        self.code = "CR301" if old else "CR304"
        self._command = (python, str(PROGRAM), "fx-flag-compile" if old else "is-compiling")
        self._torch = torch
        self._budget_s = budget_s
        self._jobs = jobs

    def search(self, strategy: Name, seed: int) -> Measured:
        """Search until the race is found or the budget is spent."""
        with tempfile.TemporaryDirectory(prefix="search-") as out:
            folder = Path(out)
            runner = ProcessRunner(folder, self._launch)
            began, cpu = time.monotonic(), children_cpu_s()
            made = _strategy(strategy, seed, runner, folder)
            before_s = children_cpu_s() - cpu
            options = SearchOptions(
                bound=MOST,
                jobs=self._jobs,
                until=self.code,
                limit_s=self._budget_s - (time.monotonic() - began),
                as_given=strategy == "repeat",
            )
            result = Search(made, runner, options).run()
            wall_s = time.monotonic() - began
        found = next((r for r in result.reported if self.code in r.roots), None)
        recorded = int(strategy in {"enumerate", "pct"})
        measured = Measured(
            torch=self._torch,
            code=self.code,
            strategy=strategy,
            seed=seed,
            found=found is not None,
            runs=len(result.tried) + recorded,
            cpu_s=round(before_s + result.cpu_s, 1),
            wall_s=round(wall_s, 1),
        )
        if result.interrupted:
            raise KeyboardInterrupt
        if found is None:
            return measured
        return replace(
            measured,
            runs=found.after_runs + recorded,
            cpu_s=round(before_s + found.after_cpu_s, 1),
            again=found.said,
            schedule=found.schedule.text,
        )

    def _launch(self, schedule: Schedule, folder: Path, slot: int) -> Launch:
        del slot
        asked = schedule.for_child() if schedule != Plan() else None
        return Launch(
            command=self._command,
            folder=folder,
            watch=WatchSettings(schedule=asked),
            timeout_s=TIMEOUT_S,
            log=folder / "child.log",
        )


def _strategy(name: Name, seed: int, runner: ProcessRunner, folder: Path) -> Strategy:
    if name == "repeat":
        return Given(Plan(), MOST)
    # Each seed of pct and chaos is the first of as many as a search may need.
    options = ScheduleOptions(explore=MOST, strategy=name, search_seed=seed * MOST)
    return make_strategy(options, runner, folder, lambda _: None)


def summary(measured: Sequence[Measured]) -> list[str]:
    """A line for each strategy: how often it found the race, and the medians over all seeds."""
    lines = []
    for name in dict.fromkeys(m.strategy for m in measured):
        own = [m for m in measured if m.strategy == name]
        found = sum(m.found for m in own)
        # A search that found nothing took longer than what it was given.
        runs = statistics.median(m.runs if m.found else math.inf for m in own)
        cpu_s = statistics.median(m.cpu_s if m.found else math.inf for m in own)
        lines.append(
            f"{name:9}  torch {own[0].torch}  {own[0].code}  found {found} of {len(own)}  "
            f"median runs {runs:g}  CPU s {cpu_s:.0f}"
        )
    return lines


def _parser():
    parser = usage.parser(__doc__)
    parser.add_argument("--python", default=sys.executable, help="whose torch is to be searched")
    parser.add_argument("--seeds", type=usage.whole(1, 10_000), default=5, help="of each strategy")
    parser.add_argument(
        "--budget-s", type=usage.decimal(1, 1_000_000), default=600.0, help="seconds a search"
    )
    parser.add_argument(
        *("--strategy", "--strategies"),
        dest="strategies",
        nargs="+",
        action="extend",
        choices=STRATEGIES,
        metavar="NAME",
        help=f"only these, of {', '.join(STRATEGIES)}",
    )
    parser.add_argument(
        *("-j", "--jobs"), type=usage.whole(1, MOST_JOBS), default=1, help="runs at a time"
    )
    parser.add_argument("--json", type=usage.writable, help="write the figures to this file too")
    return parser


def main() -> int:
    """Search and print; exit 1 if enumerate once did not find the race, 130 if interrupted."""
    parser = _parser()
    options = parser.parse_args()
    try:
        python = inspect(options.python)
        check_torch(python, needed=True)
    except UsageError as error:
        parser.error(str(error))
    bench = Bench(options.python, python.torch, options.budget_s, options.jobs)
    measured: list[Measured] = []
    code = 0
    try:
        for name in dict.fromkeys(options.strategies or STRATEGIES):
            for seed in range(options.seeds):
                measured.append(bench.search(name, seed))
                print(measured[-1].said, flush=True)
                if options.json:
                    options.json.write_text(json.dumps([asdict(m) for m in measured], indent=1))
    except KeyboardInterrupt:
        code = 130
    print("\n".join(summary(measured)))
    missed = any(m.strategy == "enumerate" and not m.found for m in measured)
    return code or int(missed)


if __name__ == "__main__":
    sys.exit(main())
