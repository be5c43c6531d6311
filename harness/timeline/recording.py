"""Reads a run folder: the events of every process and how the program ended.

A recording can end anywhere: the process may have been killed in the middle of a line. It can also
be younger or older than this reader: points and fields that it does not know are counted and left
out. Reading never fails over what is in the files (see ``harness.events.lines``).
"""

import contextlib
import gc
import operator
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.events.ended import Ended, read_ended
from harness.events.files import ENDED, EVENTS, RUN, event_files, segment_number, segments
from harness.events.lines import UNREADABLE, Lines, Reader
from harness.events.run import Run, read_run
from harness.events.schema import SCHEMA_VERSION, Event, Header
from harness.timeline.builder import Builder
from harness.timeline.folding import BOUNDS, Bounds
from harness.timeline.narrow import NARROW, StepSeen
from harness.timeline.timeline import Timeline

T = TypeVar("T")

_PID = operator.attrgetter("pid")
MAX_PROCESSES = 256
"""So many processes of a recording are told of."""


class Recording:
    """A run folder.

    Attributes:
        folder: the run folder.
        run: what was asked for; None if ``run.json`` is missing or unreadable.
        ended: how the program ended; None if ``ended.json`` is missing or unreadable.
        unreadable: which of these two cannot be read although it is there, and why.
        lines: how reading went; complete after ``timelines()``.
        deleted_segments: segments of steady events that the recorder deleted to stay in bounds.
        processes_left_out: processes beyond ``MAX_PROCESSES``, as far as they are counted.
    """

    def __init__(self, folder: Path | str, bounds: Bounds = BOUNDS) -> None:
        self.folder = Path(folder)
        self.unreadable: dict[str, str] = {}
        self.run: Run | None = self._whole(RUN, read_run)
        self.ended: Ended | None = self._whole(ENDED, read_ended)
        self.lines = Lines()
        self.deleted_segments = 0
        self.processes_left_out = 0
        self._bounds = bounds

    def events(self) -> Iterator[Event]:
        """Every kept event, file by file. Raises OSError if the folder cannot be read."""
        reader = Reader(Event, Lines())
        for path in event_files(self.folder):
            for batch in reader.read(path):
                yield from batch

    def steady(self) -> Iterator[Event]:
        """Steady events that are still on disk. Raises OSError if the folder cannot be read."""
        reader = Reader(Event, Lines())
        for path in segments(self.folder):
            for batch in reader.read(path, may_be_gone=True):
                yield from batch

    def timelines(self) -> list[Timeline]:
        """One timeline a process, the main process first.

        Raises OSError if the folder cannot be read.
        """
        with _without_collector():
            return self._timelines()

    def _timelines(self) -> list[Timeline]:
        found = _Assembly(self._bounds)
        for path in event_files(self.folder):
            found.take(found.reader.read(path))
        found.no_more_processes()
        for path in segments(self.folder):
            found.take(found.reader.read(path, may_be_gone=True))
        self.lines = found.reader.lines
        self.processes_left_out = len(found.left_out)
        self.deleted_segments = self._deleted()
        timelines = found.finish(segments_deleted=self.deleted_segments > 0)
        if timelines:
            self.ended = _own_interrupt(self.ended, timelines[0])
            timelines[0].ended = self.ended
            timelines[0].damaged = self.lines.damaged
        return timelines

    @property
    def empty(self) -> bool:
        """Whether the main process's recording is there, and nothing is in it."""
        try:
            return (self.folder / EVENTS).stat().st_size == 0
        except OSError:
            return False

    def _whole(self, name: str, read: Callable[[Path], T]) -> T | None:
        try:
            return read(self.folder)
        except UNREADABLE as error:
            self.unreadable[name] = f"{name} cannot be read: {error}"
        except OSError as error:
            self.unreadable[name] = f"{name} cannot be read: {error.strerror or error}"
        return None

    def _deleted(self) -> int:
        first: dict[str, int] = {}
        for path in segments(self.folder):
            named = segment_number(path)
            if named is not None:
                process, number = named
                first[process] = min(first.get(process, number), number)
        return sum(number - 1 for number in first.values())


def _by_process(batch: list[Any]) -> dict[int, list[Any]]:
    """The events of each process, in order."""
    found: dict[int, list[Any]] = dict.fromkeys(map(_PID, batch), batch)
    if len(found) > 1:
        found = {pid: [] for pid in found}
        for event in batch:
            found[event.pid].append(event)
    return found


def _own_interrupt(ended: Ended | None, main: Timeline) -> Ended | None:
    """How the program ended, told from a kill where it raised KeyboardInterrupt by itself.

    Python then ends by SIGINT (``exit_sigint`` in CPython's ``Modules/main.c``), which from outside
    looks as if somebody had sent that. One that a signal raised is not recorded.
    """
    if ended is None or ended.signal != signal.SIGINT or ended.told_to_end:
        return ended
    raised = any(
        e.via == "main" and e.error.type == KeyboardInterrupt.__name__ for e in main.errors
    )
    return msgspec.structs.replace(ended, killed_from_outside=False) if raised else ended


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Keep the garbage collector from looking at events again and again: they form no cycles."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Assembly:
    """Hands each event to its process's builder."""

    def __init__(self, bounds: Bounds) -> None:
        self.reader = Reader(NARROW, Lines(), self._unknown)
        self.left_out: set[int] = set()
        self._bounds = bounds
        self._builders: dict[int, Builder] = {}
        self._main: int | None = None
        self._unknown_first: list[tuple[int, int]] = []
        self._complete = False

    def take(self, batches: Iterator[list[Any]]) -> None:
        """Take in the events of one file."""
        for batch in batches:
            kinds = set(map(type, batch))
            if Header in kinds:
                self._headers(batch)
            for pid, own in _by_process(batch).items():
                builder = self._builders.get(pid) or self._begin(pid)
                if builder is not None and kinds == {StepSeen}:
                    builder.steps(own)
                elif builder is not None:
                    for event in own:
                        builder.add(event)

    def no_more_processes(self) -> None:
        """Let what comes now belong to the processes that are known: steady events only."""
        self._complete = True

    def finish(self, *, segments_deleted: bool) -> list[Timeline]:
        """The timelines, the main process's first."""
        for pid, seq in self._unknown_first:
            if pid in self._builders:
                self._builders[pid].skip(seq)
        builders = self._builders.values()
        found = [builder.finish(segments_deleted=segments_deleted) for builder in builders]
        found.sort(key=lambda timeline: (timeline.pid != self._main, timeline.t0))
        return found

    def _headers(self, batch: Sequence[Any]) -> None:
        for event in batch:
            if isinstance(event, Header):
                self._main = event.pid if self._main is None else self._main
                if event.data.schema > SCHEMA_VERSION:
                    self.reader.lines.newer = max(self.reader.lines.newer, event.data.schema)

    def _begin(self, pid: int) -> Builder | None:
        if self._complete:
            return None
        if len(self._builders) >= MAX_PROCESSES:
            if len(self.left_out) < MAX_PROCESSES:
                self.left_out.add(pid)
            return None
        builder = self._builders[pid] = Builder(pid, self._bounds)
        return builder

    def _unknown(self, pid: int, seq: int) -> None:
        builder = self._builders.get(pid)
        if builder is not None:
            builder.skip(seq)
        elif len(self._unknown_first) < MAX_PROCESSES:
            self._unknown_first.append((pid, seq))
