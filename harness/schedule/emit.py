"""Writes the script that shows a race by itself, and runs it where there is nothing but torch."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.diagnosis.report import Report
from harness.events.files import write_whole
from harness.schedule.plan import Schedule
from harness.schedule.script import NoScript, Parts, Script, script_for
from harness.timeline.recording import Recording

SCRIPT = "repro.py"
TIMES = 3
TIMEOUT_S = 180.0
# What may change how torch or Python behaves, or lets a process be watched.
_DROPPED = ("PYTHON", "TORCH", "PYTORCH", "TRITON", "COMPILE_RACE")


@dataclass(frozen=True)
class Forced:
    """A run under a schedule, and what its program is made of (see ``script.Parts``)."""

    report: Report
    recording: Recording
    schedule: Schedule | None
    parts: Parts


@dataclass(frozen=True)
class Emitted:
    """A script that was written, and what it did.

    Attributes:
        path: where it is.
        code: of the finding that it shows.
        reproduced: so many of ``times`` runs reproduced it.
        times: how often it was run.
        trouble: the last line of a run that came to no answer; empty if all did.
    """

    path: Path
    code: str
    reproduced: int
    times: int
    trouble: str = ""

    @property
    def said(self) -> str:
        """One line."""
        trouble = f"; one said: {self.trouble}" if self.trouble else ""
        return (
            f"{self.path} shows {self.code} by itself: reproduced {self.reproduced} of "
            f"{self.times}{trouble}"
        )


def write_script(path: Path, forced: Forced) -> Script:
    """Write the script of what a schedule forced.

    Raises:
        NoScript: there is none for it; why, in words.
        OSError: the recording cannot be read, or the script not written.
    """
    main = next(iter(forced.recording.timelines()), None)
    findings = [f for f in forced.report.findings if main is not None and f.pid == main.pid]
    script = script_for(findings, forced.schedule, forced.recording, forced.parts)
    write_whole(path, script.text)
    return script


def emit_script(path: Path, forced: Forced, interpreter: str, times: int = TIMES) -> Emitted:
    """Write the script of what a schedule forced, and run it ``times`` times.

    Raises what ``write_script`` does.
    """
    script = write_script(path, forced)
    answers = [run_script(path, interpreter) for _ in range(times)]
    return Emitted(
        path=path,
        code=script.code,
        reproduced=sum(answer is True for answer in answers),
        times=times,
        trouble=next((answer for answer in answers if isinstance(answer, str)), ""),
    )


def run_script(path: Path, interpreter: str) -> bool | str:
    """Run a script on its own: whether it reproduces, or what it said where it came to no answer.

    Isolated (``python -I``: neither the working folder nor ``PYTHONPATH`` is on the path), in an
    empty folder, with compile caches of its own and no variable that sets anything of Python's or
    torch's.
    """
    with tempfile.TemporaryDirectory(prefix="compile-race-") as folder:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder, "inductor"))
        environment["TRITON_CACHE_DIR"] = str(Path(folder, "triton"))
        try:
            done = subprocess.run(
                [interpreter, "-I", str(path.resolve())],
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"nothing within {TIMEOUT_S:.0f} s"
        except OSError as error:
            return f"it could not be started: {error.strerror or error}"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    # An uncaught exception ends with 1 as well.
    match done.returncode, last:
        case 1, "reproduced":
            return True
        case 0, "not reproduced":
            return False
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else f"exit code {done.returncode}"


def say_script(path: Path, forced: Forced, interpreter: str) -> str:
    """``emit_script`` for a command: the line to print, whatever came of it."""
    try:
        return emit_script(path, forced, interpreter).said
    except NoScript as why:
        return f"no {path.name}: {why}"
    except OSError as error:
        return f"no {path.name}: {error.strerror or error}"
