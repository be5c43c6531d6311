"""How often each named plan forces its race: ``python tests/bench/forced.py --count 50 -j 2``.

For each plan three kinds of runs of ``repro/programs/two_threads.py``, each cold and in a process
of its own: forced by the plan, the same program with no schedule, and the plan's serial control.
Printed as counts. A forced run counts if it followed its plan to the end and found the plan's
cause; a control if it followed its own and was clean. Exit code 1 where one did not, and the torch
has the defect.
"""

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.schedule.named import NAMED
from harness.schedule.outcome import Outcome
from harness.schedule.plan import Plan, Schedule, serial
from harness.schedule.runner import ProcessRunner
from harness.supervise.interpreter import Interpreter, inspect
from harness.supervise.launch import Launch, WatchSettings

PROGRAM = Path(__file__).resolve().parents[2] / "repro" / "programs" / "two_threads.py"
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Race:
    """What a plan forces, and the torch minor versions (first, last) that have the defect."""

    code: str
    since: tuple[int, int]
    until: tuple[int, int]


NEWEST = (99, 0)
RACES = {
    "fx-flag": Race("CR301", (2, 11), (2, 13)),
    "fx-flag-sticky": Race("CR302", (2, 11), (2, 13)),
    "is-compiling": Race("CR304", (2, 13), NEWEST),
    "stampede": Race("CR303", (2, 11), NEWEST),
    "fx-annotation": Race("CR310", (2, 13), NEWEST),
    "fx-patcher": Race("CR308", (2, 11), NEWEST),
}


def body_of(name: str, torch: tuple[int, int]) -> str:
    """What ``two_threads.py`` is to do. Up to 2.12 a compile's own trace is seen as well."""
    return "fx-flag-compile" if name == "fx-flag" and torch < (2, 13) else name


def minor(version: str) -> tuple[int, int]:
    """``2.13.0+cpu`` as (2, 13)."""
    major, of, *_ = version.split(".")
    return int(major), int(of)


class Bench:
    """Runs one plan's three kinds of runs."""

    def __init__(self, name: str, python: Interpreter, out: Path, jobs: int, count: int) -> None:
        self._race = RACES[name]
        self._plan = NAMED[name]
        self._torch = minor(python.torch)
        self._command = (python.path, str(PROGRAM), body_of(name, self._torch))
        self._runner = ProcessRunner(out, self._launch)
        self._jobs = jobs
        self._count = count

    def run(self) -> bool:
        """Print a line and what differed; return whether all was as it should be."""
        race = self._race
        has = race.since <= self._torch <= race.until
        forced = self._runs(self._plan)
        natural = self._runs(Plan())
        controls = self._runs(serial(self._plan))
        hit = [race.code in o.codes and o.followed for o in forced]
        seen = sum(race.code in o.codes for o in natural)
        clean = [o.kind == "clean" and o.followed for o in controls]
        count = self._count
        print(
            f"{self._plan.name}: {race.code} forced {sum(hit)} of {count}, natural {seen} of "
            f"{count}, serial control clean {sum(clean)} of {count}",
            flush=True,
        )
        differed = [o for o, right in zip(forced, hit, strict=True) if right != has]
        differed += [o for o, right in zip(controls, clean, strict=True) if not right]
        for outcome in differed:
            what = outcome.headline or outcome.verdict
            print(f"  {outcome.kind} {' '.join(outcome.codes)} followed={outcome.followed}: {what}")
        return not differed

    def _runs(self, schedule: Schedule) -> Sequence[Outcome]:
        with ThreadPoolExecutor(self._jobs) as pool:
            return list(pool.map(lambda _: self._one(schedule), range(self._count)))

    def _one(self, schedule: Schedule) -> Outcome:
        outcome = self._runner.run(schedule, 0)
        self._runner.drop(outcome)
        return outcome

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


def main() -> int:
    """Run the plans and print a line for each; exit 1 if any run differed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=50, help="runs of each kind")
    parser.add_argument("--plan", action="append", choices=sorted(RACES), help="only this plan")
    parser.add_argument("--python", default=sys.executable, help="whose torch is to be raced")
    parser.add_argument("-j", type=int, default=1, metavar="N", help="runs at a time")
    options = parser.parse_args()
    python = inspect(options.python)
    print(
        f"torch {python.torch}, python {python.python}, {platform.machine()}, {os.cpu_count()} "
        f"cores, {options.j} at a time, cold caches",
        flush=True,
    )
    right = True
    with tempfile.TemporaryDirectory() as out:
        for name in options.plan or RACES:
            right &= Bench(name, python, Path(out), options.j, options.count).run()
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
