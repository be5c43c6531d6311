"""Reads a run folder: the events of every process and how the program ended.

A recording can end anywhere: the process may have been killed in the middle of a line. It can also
be younger or older than this reader: points and fields that it does not know are counted and left
out.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from harness.events.ended import Ended, read_ended
from harness.events.files import event_files, segment_number, segments
from harness.events.run import Run, read_run
from harness.events.schema import Event, Header, Step
from harness.timeline.builder import Builder
from harness.timeline.timeline import Timeline


class _Peek(msgspec.Struct):
    """What a line needs for its point to be told."""

    point: str = ""
    pid: int = 0
    seq: int = 0


_decode = msgspec.json.Decoder(Event).decode
_peek = msgspec.json.Decoder(_Peek).decode
_KNOWN = frozenset(str(kind.__struct_config__.tag) for kind in Event.__args__)


@dataclass(slots=True)
class Lines:
    """How reading went: lines of unknown points, unreadable lines, files whose last line is cut."""

    unknown: dict[str, int] = field(default_factory=dict)
    damaged: int = 0
    cut: int = 0


class Recording:
    """A run folder.

    Attributes:
        folder: the run folder.
        run: what was asked for; None if ``run.json`` is missing or unreadable.
        ended: how the program ended; None if ``ended.json`` is missing or unreadable.
        lines: how reading went; complete after ``timelines()``.
        deleted_segments: segments of steady events that the recorder deleted to stay in bounds.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.run = _run(self.folder)
        self.ended = _ended(self.folder)
        self.lines = Lines()
        self.deleted_segments = 0
        self._unknown_seqs: list[tuple[int, int]] = []

    def events(self) -> Iterator[Event]:
        """Every kept event, file by file. Raises OSError if the folder cannot be read."""
        for path in event_files(self.folder):
            yield from self._read(path)

    def steady(self) -> Iterator[Event]:
        """Steady events that are still on disk."""
        for path in segments(self.folder):
            yield from self._read(path)

    def timelines(self) -> list[Timeline]:
        """One timeline a process, the main process first."""
        self.lines, self._unknown_seqs = Lines(), []
        builders: dict[int, Builder] = {}
        main: int | None = None
        for event in self.events():
            if main is None and isinstance(event, Header):
                main = event.pid
            builder = builders.get(event.pid)
            if builder is None:
                builder = builders[event.pid] = Builder(event.pid)
            builder.add(event)
        for event in self.steady():
            if event.pid in builders and isinstance(event, Step):
                builders[event.pid].add(event)
        for pid, seq in self._unknown_seqs:
            if pid in builders:
                builders[pid].skip(seq)
        self.deleted_segments = self._deleted()
        found = [
            builder.finish(segments_deleted=self.deleted_segments > 0)
            for builder in builders.values()
        ]
        found.sort(key=lambda timeline: (timeline.pid != main, timeline.t0))
        if found:
            found[0].ended = self.ended
            found[0].damaged = self.lines.damaged
        return found

    def _deleted(self) -> int:
        first: dict[str, int] = {}
        for path in segments(self.folder):
            named = segment_number(path)
            if named is not None:
                process, number = named
                first[process] = min(first.get(process, number), number)
        return sum(number - 1 for number in first.values())

    def _read(self, path: Path) -> Iterator[Event]:
        with path.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    self.lines.cut += 1
                    return
                if line.isspace():
                    continue
                try:
                    event = _decode(line)
                except msgspec.DecodeError:
                    mended = _without_surrogates(line)
                    if mended is None:
                        self._unreadable(line)
                    else:
                        yield mended
                else:
                    yield event

    def _unreadable(self, line: bytes) -> None:
        try:
            peek = _peek(line)
        except msgspec.DecodeError:
            peek = _Peek()
        if peek.point and peek.point not in _KNOWN:
            self.lines.unknown[peek.point] = self.lines.unknown.get(peek.point, 0) + 1
            self._unknown_seqs.append((peek.pid, peek.seq))
        else:
            self.lines.damaged += 1


def _without_surrogates(line: bytes) -> Event | None:
    r"""Read a line with lone surrogates, which stand for a path's undecodable bytes.

    Python's JSON writes and reads them, the JSON standard knows none; they are kept as ``\udcff``.
    """
    if b"\\ud" not in line:
        return None
    try:
        event: Event = msgspec.convert(_mend(json.loads(line)), Event)
    except (ValueError, msgspec.ValidationError):
        return None
    return event


def _mend(value: object) -> object:
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case list():
            return [_mend(item) for item in value]
        case dict():
            return {_mend(key): _mend(item) for key, item in value.items()}
        case _:
            return value


def _run(folder: Path) -> Run | None:
    try:
        return read_run(folder)
    except (OSError, msgspec.DecodeError):
        return None


def _ended(folder: Path) -> Ended | None:
    try:
        return read_ended(folder)
    except (OSError, msgspec.DecodeError):
        return None
