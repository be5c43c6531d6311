"""``harness.watching()``: a watch of a part of a program, in the program's own process.

For notebooks, and for programs that cannot be started by ``python -m harness.watch``. It sees less
than that: what was compiled before it began shows only as cache entries; nothing is left of it if
the process dies; forked and spawned processes are not watched; and while it lasts each cached call
costs one to two microseconds more (1.6 of 32 on torch 2.13.0+cpu, 1.8 of 26 on 2.11.0, two cores).
"""

import contextlib
import datetime as dt
import io
import os
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from rich.console import Console

from harness import __version__
from harness.diagnosis.report import Report, Verdict
from harness.diagnosis.shown import report_to_show
from harness.events.ended import Ended, write_ended
from harness.events.files import recordings
from harness.events.run import Run, write_run
from harness.render import WRITERS, write_all
from harness.render.terminal import print_report
from harness.render.view import View
from harness.supervise.folder import make_run_folder
from harness.timeline.recording import Recording

if sys.modules.get("_compile_race_child.boot") is not None:
    # The process was started to be watched: its probes are those of the package's other copy.
    from _compile_race_child.in_process import inside  # type: ignore[import-not-found,unused-ignore]
    from _compile_race_child.settings import (  # type: ignore[import-not-found,unused-ignore]
        Settings,
    )
else:
    from harness.child.in_process import inside
    from harness.child.settings import Settings

NAME = "harness.watching"
WIDTH = 100
"""Columns of a text report."""


class Watching:
    """A watch of a block of a program; see ``harness.watching``.

    Attributes:
        folder: the run folder; None: the recording is not kept.
    """

    def __init__(self, out: Path | None, *, source: bool, compile_detail: bool) -> None:
        self.folder: Path | None = None
        self._out = out
        self._source = source
        self._compile_detail = compile_detail
        self._pid = os.getpid()
        self._copy: inside.Copy | None = None
        self._report: Report | None = None
        self._failure: Exception | None = None
        self._place = Path()
        self._started = ""
        self._start_s = 0.0

    def __enter__(self) -> Self:
        """Begin. Raises UsageError if there is no writing to the folder, and leaves none then."""
        if self._copy is not None:
            raise RuntimeError("this watch has been used: make a new one with harness.watching()")
        if self._out is None:
            self._place = Path(tempfile.mkdtemp(prefix="compile-race-"))
        else:
            self._place = self.folder = make_run_folder(self._out, "watching")
        try:
            self._begin()
        except BaseException:
            shutil.rmtree(self._place, ignore_errors=True)
            self.folder = None
            raise
        return self

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self._start_s = time.monotonic()
        run = Run(
            harness=__version__,
            prog=NAME,
            started=self._started,
            no_source=not self._source,
        )
        write_run(self._place, run)
        settings = Settings(
            folder=str(self._place),
            harness=__version__,
            compile_detail=self._compile_detail,
            cache_state="kept",
            in_process=True,
        )
        self._copy = inside.begin(settings)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End, put everything back and diagnose. An exception of the block goes on its way."""
        if self._copy is None or os.getpid() != self._pid:
            return  # a forked process came here, too
        failed = isinstance(error, Exception)
        inside.end(self._copy, error if failed else None)
        try:
            self._diagnose(exit_code=int(failed))
        except Exception as failure:  # noqa: BLE001 - the block's own exception matters more
            self._failure = failure
            warnings.warn(f"{NAME}: the report failed: {failure!r}", RuntimeWarning, stacklevel=2)
        finally:
            if self.folder is None:
                shutil.rmtree(self._place, ignore_errors=True)
        for place in self._copy.kept:
            text = f"{NAME}: {place} was replaced by somebody else meanwhile and stays as it is"
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    @property
    def ended(self) -> bool:
        """Whether there is a report."""
        return self._report is not None

    @property
    def diagnosis(self) -> Report:
        """The report as an object. Raises RuntimeError before the block has ended."""
        if self._report is None:
            why = "the report failed" if self._failure else "the watched block has not ended yet"
            raise RuntimeError(why) from self._failure
        return self._report

    @property
    def verdict(self) -> Verdict:
        """``clean``, ``found``, ``incomplete``, ``failed`` or ``nothing ran``.

        Raises RuntimeError before the block has ended.
        """
        return "failed" if self._failure else self.diagnosis.verdict

    def report(
        self,
        format: Literal["terminal", "md", "html", "json"] = "terminal",  # noqa: A002 - as the flag
    ) -> str:
        """The report as text. Raises RuntimeError before the block has ended."""
        if format != "terminal":
            return WRITERS[format](View.of(self.diagnosis, self.folder))
        file = io.StringIO()
        print_report(self.diagnosis, Console(file=file, width=WIDTH), self.folder)
        return file.getvalue()

    def _repr_markdown_(self) -> str:
        """What a notebook shows of it."""
        return self.report("md") if self._report is not None else "*the watch has not ended yet*"

    def _diagnose(self, exit_code: int) -> None:
        ended = Ended(
            exit_code=exit_code,
            wall_s=round(time.monotonic() - self._start_s, 3),
            started=self._started,
            command=list(sys.orig_argv),
            recordings=recordings(self._place),
            block=True,
            parent_version=__version__,
        )
        with contextlib.suppress(OSError):  # a full disk
            write_ended(self._place, ended)
        recording = Recording(self._place)
        recording.ended = ended
        self._report = report_to_show(recording, no_source=not self._source)
        if self.folder is not None:
            write_all(self._report, self.folder)
