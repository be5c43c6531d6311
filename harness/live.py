"""Says what a run that still goes on has shown so far, and ends it if that was asked for.

The recording is followed as it grows. When something of note is in it, it is diagnosed as at the
end, in a thread, and then not again before a hundred times the processor time that this took: the
watch of a night run costs about one percent of one core, however long its recording is.
"""

import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from dflash_min.cli import say
from dflash_min.errors import UsageError
from harness.alerts import Alerts
from harness.diagnosis.build import diagnose
from harness.diagnosis.report import Finding, Report
from harness.diagnosis.sharing import for_sharing
from harness.diagnosis.warmed import late_compilers, warm_ups
from harness.events.files import event_files
from harness.events.schema import Event
from harness.supervise.progress import Growing
from harness.timeline.recording import Recording

FOUND = "found"
AFTER_WARMUP = "after-warmup-compile"
UNDECIDED: Mapping[str, str] = {
    "CR302": "the flag is read once no thread traces any more, at the end",
    "CR901": "a future that nobody has asked yet may still be asked",
    "CR902": "the process has not ended",
    "CR903": "what stands still now may go on",
    "CR904": "what took the memory may show later",
    "CR905": "the process has not ended",
    "CR906": "the process has not ended",
}
"""Causes that a run which still goes on cannot be charged with, and why.

Every other finding rests on events that happened: a later event can add to it, and none can take it
back. A test diagnoses all recordings of the test suite event by event and holds them to that.
"""

SO_FAR = frozenset({"CR905"})
"""Of those, what is worth a line before the end all the same, and no alert and no stop: an error
ended a thread, and a later finding may account for it."""

STOP_AFTER_S = 5.0
"""A program that is to be stopped runs on for so long, so that the report shows what it led to."""

_FIRST_AFTER_WARMUP = "first compile after warm-up"
_FIRST_COLD = "compile without a warm-up"
_LOOK_S = 0.5
_BACK_OFF = 100.0
_AFTER_FAILURE_S = 60.0
_READS = 16
# Told by how a line begins, since the recorder writes the point first.
_OF_NOTE = re.compile(
    rb'\{"point": "(?:guard_miss|dynamo_compile|backward_compile|dense_attention|block_mask'
    rb'|thread_error|eager|stance|out_of_memory|wrapper(?=.*"fx_flag": true))"'
)


def check_stop_on(value: str, known_causes: Collection[str]) -> None:
    """Refuse a value of ``--stop-on`` that would never stop a run. Raises UsageError."""
    if value in {"", FOUND, AFTER_WARMUP}:
        return
    if value in UNDECIDED:
        raise UsageError(f"--stop-on {value}: it is known only at the end: {UNDECIDED[value]}")
    if value not in known_causes:
        raise UsageError(f"--stop-on {value}: neither {FOUND} nor {AFTER_WARMUP} nor a cause code")


def decided(report: Report) -> list[Finding]:
    """The roots of a run's report that nothing which happens later can undo."""
    return [f for f in report.findings if f.root and f.code not in UNDECIDED]


class Live:
    """Follows one run.

    Args:
        prog: the command's name, for messages.
        folder: the run folder.
        stop_on: ``found``, ``after-warmup-compile``, a cause code or nothing.
        alert: a shell command to run for each new root, or nothing.
        clock: seconds; for tests.
    """

    def __init__(
        self,
        prog: str,
        folder: Path,
        *,
        stop_on: str = "",
        alert: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prog = prog
        self._folder = folder
        self._stop_on = stop_on
        self._alerts = Alerts(alert, folder, self._say)
        self._clock = clock
        self._began = clock()
        self._files: dict[Path, Growing] = {}
        self._of_note = False
        self._look_at = self._diagnose_at = self._began
        self._worker: _Diagnosis | None = None
        self._said: set[str] = set()
        self._compiles_said: set[str] = set()
        self._so_far: set[str] = set()
        self._stop: str | None = None
        self._stop_at = 0.0
        self._failed = False

    def tick(self) -> str | None:
        """Look at what is new, at most twice a second; return why the run is to be ended, if so."""
        now = self._clock()
        if now < self._look_at:
            return None
        self._look_at = now + _LOOK_S
        self._alerts.poll()
        self._of_note = self._anything_of_note() or self._of_note
        if self._worker is not None:
            self._take(now)
        elif self._of_note and now >= self._diagnose_at:
            self._of_note = False
            self._worker = _Diagnosis(self._folder)
            self._worker.start()
        return self._stop if now >= self._stop_at else None

    def finish(self, report: Report) -> None:
        """Alert of the roots that only the end has shown, and wait for the alerts.

        Args:
            report: the report as it is shown, without secrets.
        """
        for finding in report.findings:
            if finding.root:
                self._alerts.give(finding)
        self._alerts.finish()

    def _anything_of_note(self) -> bool:
        found = False
        for path in event_files(self._folder):
            file = self._files.setdefault(path, Growing(path))
            for _ in range(_READS):
                lines = file.new_lines()
                found = found or any(map(_OF_NOTE.match, lines))
                if not lines:
                    break
        return found

    def _take(self, now: float) -> None:
        """Take the result of the last diagnosis, if it has one by now."""
        worker = self._worker
        if worker is None or worker.is_alive():
            return
        self._worker = None
        if worker.report is None:  # it may have been read while it was being written
            self._of_note, self._diagnose_at = True, now + _AFTER_FAILURE_S
            if not self._failed:  # once: whoever relies on --stop-on or --alert has to know
                self._failed = True
                self._say(f"{self._seconds()}: not diagnosed, and tried again: {worker.failure}")
            return
        self._diagnose_at = now + _BACK_OFF * worker.cpu_s
        self._tell(worker.report)

    def _tell(self, report: Report) -> None:
        if report.counts.compiles_after_warmup:
            self._said.add(AFTER_WARMUP)
            for what, where in _first_compiles(report).items():
                if what not in self._compiles_said:
                    self._compiles_said.add(what)
                    self._say(f"{self._seconds()}: {what}{where}")
        for number, finding in enumerate(decided(report)):
            if self._is_new(finding.code):
                text = finding.statements[0].text if number else report.headline
                self._say(f"{self._seconds()}: {finding.code} {finding.title}: {text}")
                self._alerts.give(finding)
        for finding in report.findings:
            if finding.root and finding.code in SO_FAR and finding.code not in self._so_far:
                self._so_far.add(finding.code)
                text = finding.statements[0].text
                self._say(f"{self._seconds()}: {finding.code} {finding.title}, so far: {text}")
        if self._stop is None and self._is_to_stop():
            reasons = ", ".join(sorted(self._said))
            self._stop = f"--stop-on {self._stop_on} ({reasons})"
            self._stop_at = self._clock() + STOP_AFTER_S

    def _is_new(self, what: str) -> bool:
        new = what not in self._said
        self._said.add(what)
        return new

    def _is_to_stop(self) -> bool:
        if self._stop_on == FOUND:
            return bool(self._said - {AFTER_WARMUP})
        return self._stop_on in self._said

    def _seconds(self) -> str:
        return f"{self._clock() - self._began:.1f} s"

    def _say(self, text: str) -> None:
        say(self._prog, text)


class _Kept(Recording):
    """The kept events alone: the steady ones, which may be many, say nothing about causes."""

    def steady(self) -> Iterator[Event]:
        return iter(())


class _Diagnosis(threading.Thread):
    """One diagnosis of what is on disk.

    Attributes:
        report: the report; None while there is none, or if it failed.
        failure: why it failed, in words.
        cpu_s: processor seconds that it took.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(name="live diagnosis", daemon=True)
        self._folder = folder
        self.report: Report | None = None
        self.failure = ""
        self.cpu_s = 0.0

    def run(self) -> None:
        start = time.thread_time()
        try:
            self.report = for_sharing(diagnose(_Kept(self._folder)))
        except Exception as error:  # noqa: BLE001 - the run goes on, whatever it is
            self.failure = f"{type(error).__name__}: {error}"
        self.cpu_s = time.thread_time() - start


def _first_compiles(report: Report) -> dict[str, str]:
    """What is said of compiles after warm-up, and where each was: `` : `f` in `worker-0` ``.

    Those of a cold start are counted among them (see ``Counts``), and there is no warm-up there: it
    is one as soon as another thread calls what has no entry, and CR208 once two have compiled it.
    """
    found: dict[str, str] = {}
    for code, thread, warmed in late_compilers(report):
        what = _FIRST_AFTER_WARMUP if warmed else _FIRST_COLD
        found.setdefault(what, f": `{code.code.name}` in `{thread.thread.name}`")
    return found or {_FIRST_COLD if warm_ups(report) == {False} else _FIRST_AFTER_WARMUP: ""}
