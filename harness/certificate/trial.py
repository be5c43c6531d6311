"""Runs schedules and takes from each run what a certificate needs, before it is thrown away."""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.certificate.coverage import Table
from harness.certificate.model import Reached, What
from harness.certificate.seen import Seen, seen
from harness.child.schedule.order import POINTS
from harness.diagnosis.report import Report, loads
from harness.phrases import count
from harness.render import file_name
from harness.schedule.arrivals import Arrival, after_warmup, arrivals
from harness.schedule.outcome import Outcome, Runner
from harness.schedule.plan import Plan, Schedule
from harness.timeline.recording import Recording

#: What a program tells of itself; every step would be in the way of the others here.
_ANNOUNCED = frozenset({"step", "phase"})


@dataclass(frozen=True)
class Trial:
    """A schedule that is to be run, and what for."""

    what: What
    name: str
    schedule: Plan


class Trials:
    """A strategy made of a list: controls, named plans, then explored schedules."""

    name = "certify"

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.trials = tuple(trials)

    def describe(self) -> str:
        """Say how many of each there are."""
        kinds = [trial.what for trial in self.trials]
        controls, plans = kinds.count("control"), kinds.count("plan")
        return (
            f"{count(controls, 'control')}, {count(plans, 'named plan')} and "
            f"{count(kinds.count('exploration'), 'explored schedule')}"
        )

    def schedules(self) -> Iterator[Schedule]:
        """Yield them in order."""
        for trial in self.trials:
            yield trial.schedule


@dataclass
class Harvest:
    """What the runs so far have shown.

    Attributes:
        table: the calls of all runs.
        compiles: compiles after the warm-up, by schedule; of several runs the most.
        codes: causes found, and those that notes are instances of.
        marked, said_done: see ``Seen.marked``; any run's.
        runs: how many were read.
    """

    table: Table = field(default_factory=Table)
    compiles: dict[str, int] = field(default_factory=dict)
    codes: set[str] = field(default_factory=set)
    marked: bool = False
    said_done: bool = False
    runs: int = 0
    _points: dict[str, list[set[str]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, report: Report, run: Seen, found: Sequence[Arrival], of: str) -> None:
        """Take in a run of the schedule ``of``."""
        self.runs += 1
        self.table.add(run)
        compiles = report.counts.compiles_after_warmup
        self.compiles[of] = max(compiles, self.compiles.get(of, 0))
        self.codes |= {finding.code for finding in report.findings}
        self.codes |= {note.code for note in report.notes if note.code}
        self.marked |= run.marked
        self.said_done |= run.said_done
        reached: dict[str, set[str]] = defaultdict(set)
        for arrival in after_warmup(found):
            reached[arrival.point].add(arrival.thread)
        for point, threads in reached.items():
            self._points[point].append(threads)

    def points(self) -> list[Reached]:
        """The points of compiled code, in the order in which a call can meet them."""
        return [
            Reached(
                point=point,
                threads=tuple(sorted(set().union(*self._points[point]))),
                runs=len(self._points[point]),
            )
            for point in POINTS
            if point not in _ANNOUNCED
        ]


class Harvester:
    """Runs schedules by another runner and harvests each run folder before anybody drops it."""

    def __init__(self, inner: Runner, folder: Path) -> None:
        """Make one; ``inner`` puts its run folders into ``folder``."""
        self._inner = inner
        self._folder = folder
        self._lock = threading.Lock()
        self.harvest = Harvest()

    def run(self, schedule: Schedule, slot: int) -> Outcome:
        """Run one schedule; see ``harness.schedule.outcome.Runner.run``."""
        outcome = self._inner.run(schedule, slot)
        path = self._folder / outcome.folder
        written = path / file_name("json")
        # Without a report it could not be judged, and failed; its recording stays to be found.
        if outcome.folder and (outcome.kind != "failed" or written.is_file()):
            recording = Recording(path)
            report = loads(written.read_bytes())
            run, found = seen(recording), arrivals(recording)
            with self._lock:
                self.harvest.add(report, run, found, str(schedule))
        return outcome

    def stop(self) -> None:
        """End the runs that are going on."""
        self._inner.stop()

    def drop(self, outcome: Outcome) -> None:
        """Remove a run folder."""
        self._inner.drop(outcome)
