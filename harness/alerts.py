"""Commands that are run when something is found: ``--alert 'notify-send "$COMPILE_RACE_CODE"'``."""

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.diagnosis.report import Finding

CODE = "COMPILE_RACE_CODE"
RUN = "COMPILE_RACE_RUN"
LIMIT_S = 10.0
"""A command that runs for longer is left behind."""
_POLL_S = 0.02


@dataclass(frozen=True)
class _Running:
    code: str
    process: subprocess.Popen[bytes]
    until: float


class Alerts:
    """Runs one shell command for each code that it is given, once.

    The command has the finding as JSON on its stdin, as it is in ``report.json``, the cause code in
    ``COMPILE_RACE_CODE`` and the run folder in ``COMPILE_RACE_RUN``. What it prints goes to our
    stderr. It runs in a session of its own, so neither Ctrl-C nor the end of the program ends it.
    Nothing that it does is fatal: what went wrong is told to ``say``.

    Args:
        command: a command line for the shell; empty: none is run.
        folder: the run folder.
        say: prints a line.
        limit_s: seconds that a command may take.
    """

    def __init__(
        self, command: str, folder: Path, say: Callable[[str], None], limit_s: float = LIMIT_S
    ) -> None:
        self._command = command
        self._folder = folder
        self._say = say
        self._limit_s = limit_s
        self._given: set[str] = set()
        self._running: list[_Running] = []

    def give(self, finding: Finding) -> None:
        """Run the command for a finding, unless it was run for its code before."""
        if not self._command or finding.code in self._given:
            return
        self._given.add(finding.code)
        try:
            process = self._start(finding)
        except OSError as error:
            self._say(f"--alert could not be run for {finding.code}: {error.strerror or error}")
            return
        self._running.append(_Running(finding.code, process, time.monotonic() + self._limit_s))

    def poll(self) -> None:
        """Tell of commands that failed or take too long; the latter are left to themselves."""
        self._running = [running for running in self._running if not self._is_over(running)]

    def finish(self) -> None:
        """Wait until every command has ended, each for its limit at most."""
        while self._running:
            self.poll()
            if self._running:
                time.sleep(_POLL_S)

    def _start(self, finding: Finding) -> subprocess.Popen[bytes]:
        # A file, not a pipe: a command that does not read must not hold us up.
        with tempfile.TemporaryFile() as text:
            text.write(msgspec.json.encode(finding) + b"\n")
            text.seek(0)
            return subprocess.Popen(  # noqa: S602 - a command of the user's own
                self._command,
                shell=True,
                stdin=text,
                stdout=_stderr(),
                env={**os.environ, CODE: finding.code, RUN: str(self._folder)},
                start_new_session=True,
            )

    def _is_over(self, running: _Running) -> bool:
        code = running.process.poll()
        if code is None:
            late = time.monotonic() >= running.until
            if late:
                self._say(
                    f"--alert for {running.code} still runs after {self._limit_s:g} s and is left "
                    f"behind as process {running.process.pid}"
                )
                running.process.returncode = 0  # or Python warns that nobody waited for it
            return late
        if code:
            how = f"exit code {code}" if code > 0 else f"signal {-code}"
            self._say(f"--alert for {running.code} ended with {how}")
        return True


def _stderr() -> int:
    """Descriptor 2, where it is open; our own stdout may be a report that somebody parses."""
    with contextlib.suppress(OSError):
        os.fstat(2)
        return 2
    return subprocess.DEVNULL
