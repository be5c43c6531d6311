"""From results to the gate's outcome, and from that to its files."""

import datetime as dt
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import __version__
from harness.events.files import write_whole
from harness.gating.baseline import Baseline
from harness.gating.compare import Judged, Measured, exit_code, judge, missing
from harness.gating.folder import GATE_JSON, JUNIT, SUMMARY, is_full
from harness.gating.junit import junit
from harness.gating.machine import CPU
from harness.gating.outcome import Gate, LeftOutEntry, dumps, headline_of, verdict_of
from harness.gating.session import Session
from harness.gating.summary import add_step_summary, markdown

_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA")
_READABLE = 0o644


@dataclass(frozen=True)
class Began:
    """When and as what a gate was started."""

    at: dt.datetime
    command: str

    @property
    def today(self) -> dt.date:
        """The day by which entries expire, UTC."""
        return self.at.date()

    @property
    def seconds(self) -> float:
        """Seconds since."""
        return (dt.datetime.now(dt.UTC) - self.at).total_seconds()


def conclude(
    session: Session, baseline: Baseline, measured: Sequence[Measured], began: Began
) -> Gate:
    """Judge all results, and what the baseline has and no result came of."""
    machine = session.machine
    devices = {machine.device_for(entry.gpus) for entry in session.chosen()}
    left = session.left_out()
    ran = {entry.name: entry.expect for entry in session.chosen()}
    for one in left:
        del ran[one.name]
    here = {
        key: entry
        for key, entry in baseline.entries.items()
        if key.torch == machine.minor
        and key.device in devices
        and key.scenario not in {one.name for one in left}
    }
    judged: list[Judged] = [judge(one, here.get(one.key), began.today) for one in measured]
    judged += missing(measured, ran, here, every=not session.only)
    code = exit_code(judged)
    faults = tuple(dict.fromkeys(one.fault for one in measured if one.fault))
    return Gate(
        verdict=verdict_of(code),
        exit_code=int(code),
        headline=headline_of(code, tuple(judged), faults),
        torch=machine.torch,
        python=machine.python,
        device=machine.device if machine.gpus else CPU,
        gpus=len(machine.gpus),
        harness=__version__,
        commit=commit(session.suite.root),
        suite=str(session.suite.path),
        baseline=str(baseline.path),
        started=began.at.isoformat(timespec="seconds"),
        seconds=round(began.seconds, 1),
        command=began.command,
        faults=faults,
        judged=tuple(judged),
        left_out=tuple(LeftOutEntry(name=one.name, because=one.because) for one in left),
    )


def write_outcome(gate: Gate, out: Path, tell: Callable[[str], None]) -> bool:
    """Write gate.json, JUnit and the summaries; say what cannot be written.

    Returns:
        Whether all that is the gate's own could be.
    """
    written = True
    for name, text in (
        (GATE_JSON, dumps(gate)),
        (JUNIT, junit(gate)),
        (SUMMARY, markdown(gate)),
    ):
        try:
            write_whole(out / name, text, _READABLE)
        except OSError as error:
            written = False
            reason = "the disk is full" if is_full(error) else error.strerror or error
            tell(f"{out / name} cannot be written: {reason}")
    said = add_step_summary(gate, os.environ)
    if said:
        tell(said)
    return written


def commit(root: Path) -> str:
    """The commit that is tested, as the CI names it or git does; empty if neither does."""
    for name in _COMMITS:
        if os.environ.get(name):
            return os.environ[name]
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
