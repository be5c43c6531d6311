"""Runs a schedule in a fresh process, under the watch, and diagnoses it."""

import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from harness.child.privacy import mask
from harness.diagnosis.build import diagnose
from harness.events.ended import Ended
from harness.events.files import HARNESS_FAILURE, write_whole
from harness.events.run import Run, write_run
from harness.render import write_all
from harness.schedule.forcing import forcing_plans
from harness.schedule.outcome import Outcome, Stopped, failed, outcome_of
from harness.schedule.plan import Plan, Schedule
from harness.schedule.replay import first_difference
from harness.supervise.folder import make_run_folder, remove_run_folder
from harness.supervise.launch import Launch
from harness.supervise.process import supervise
from harness.timeline.recording import Recording

LaunchOf = Callable[[Schedule, Path, int], Launch]
RunOf = Callable[[Schedule], Run]


class ProcessRunner:
    """Runs schedules of one program; each has a run folder with its recording and report."""

    def __init__(self, out: Path, launch_of: LaunchOf, run_of: RunOf | None = None) -> None:
        """Make a runner.

        Args:
            out: folder for the run folders.
            launch_of: makes what is started from a schedule, its run folder and its slot.
            run_of: makes what ``run.json`` holds from a schedule.
        """
        self._out = out
        self._launch_of = launch_of
        self._run_of = run_of or (lambda _: Run())
        self._stopped = threading.Event()

    def run(self, schedule: Schedule, slot: int) -> Outcome:
        """Run one schedule; see ``harness.schedule.outcome.Runner.run``."""
        if self._stopped.is_set():
            raise Stopped
        folder = make_run_folder(self._out, schedule.strategy)
        try:
            write_run(folder, self._run_of(schedule))
            ended = supervise(self._launch_of(schedule, folder, slot), self._tick)
        except BaseException:
            remove_run_folder(folder)
            raise
        try:
            outcome = self._judge(schedule, folder, ended)
        except Exception as error:  # noqa: BLE001 - the recording must stay to be found
            outcome = failed(error)
            with suppress(OSError):
                write_whole(folder / HARNESS_FAILURE, mask(traceback.format_exc()))
        return msgspec.structs.replace(outcome, folder=folder.name, wall_s=ended.wall_s)

    def _judge(self, schedule: Schedule, folder: Path, ended: Ended) -> Outcome:
        recording = Recording(folder)
        recording.ended = ended
        report = diagnose(recording)
        write_all(report, folder)
        main = next(iter(recording.timelines()), None)
        difference = first_difference(schedule, main)
        left = "" if difference is None else difference.said
        outcome = outcome_of(report, main.schedule if main else None, left)
        plans: list[Plan] = []
        if outcome.kind == "found" and main is not None:
            own = schedule if isinstance(schedule, Plan) else None
            plans = forcing_plans([f for f in report.findings if f.pid == main.pid], recording, own)
        return msgspec.structs.replace(outcome, plans=tuple(plans))

    def stop(self) -> None:
        """End the runs that are going on."""
        self._stopped.set()

    def drop(self, outcome: Outcome) -> None:
        """Remove a run folder."""
        if outcome.folder:
            remove_run_folder(self._out / outcome.folder)

    def _tick(self) -> None:
        if self._stopped.is_set():
            raise Stopped
