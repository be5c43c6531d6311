"""Which line of which file of a run folder an event is: what makes evidence a link."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec

from harness.diagnosis.report import Report
from harness.diagnosis.sharing import shortener
from harness.events.files import event_files, open_regular, segments


class _Head(msgspec.Struct):
    """As much of an event as a list of cited lines needs."""

    seq: int
    pid: int
    source: str = ""


class _Home(msgspec.Struct):
    home: str = ""


class _Header(msgspec.Struct):
    """As much of a recording's first line as is needed to shorten paths."""

    data: _Home


_HEADER_BYTES = 1 << 20


@dataclass(frozen=True)
class EventLine:
    """One cited event.

    Attributes:
        pid: the recording's process.
        seq: the event's number there.
        file: name of the file in the run folder; empty if the event was not found.
        line: its line there, from 1.
        raw: the line's text, without secrets and the names of home folders.
    """

    pid: int
    seq: int
    file: str = ""
    line: int = 0
    raw: str = ""
    source: str = ""

    @property
    def label(self) -> str:
        """``events.jsonl:142``, or ``#142`` where the line is not known.

        Of an event that was read from a text, the text's line: ``train.log:345``.
        """
        if self.source:
            return self.source
        return f"{self.file}:{self.line}" if self.file else f"#{self.seq}"

    @property
    def target(self) -> str:
        """Its file as a relative address that no name of a file can turn into something else."""
        return f"./{quote(self.file)}"

    @property
    def anchor(self) -> str:
        """Name of its place in the HTML report."""
        return f"event-{self.pid}-{self.seq}"


@dataclass
class EventLines:
    """The cited events of a report, found in its run folder."""

    found: dict[tuple[int, int], EventLine] = field(default_factory=dict)

    def cite(self, pid: int, seqs: Iterable[int]) -> list[EventLine]:
        """The lines of some events of one process, each once, in order of their numbers."""
        return [self.found.get((pid, seq), EventLine(pid, seq)) for seq in sorted(set(seqs)) if seq]

    def labelled(self, pid: int, seqs: Iterable[int]) -> list[tuple[str, EventLine]]:
        """``cite`` with a label for each, the file named once: ``events.jsonl:12``, ``15``."""
        file = ""
        labelled: list[tuple[str, EventLine]] = []
        for event in self.cite(pid, seqs):
            of, _, line = event.label.rpartition(":")
            label = line if of and of == file else event.label
            file = of
            # Several events can have been read from one line of a text.
            if not labelled or labelled[-1][1].label != event.label or not event.source:
                labelled.append((label, event))
        return labelled

    def __iter__(self) -> Iterator[EventLine]:
        return iter(sorted(self.found.values(), key=lambda line: (line.file, line.line)))


def cited(report: Report) -> set[tuple[int, int]]:
    """``(pid, seq)`` of every event that a report gives as evidence."""
    events: set[tuple[int, int]] = set()

    def add(pid: int, seqs: Iterable[int]) -> None:
        events.update((pid, seq) for seq in seqs if seq)

    for finding in report.findings:
        add(finding.pid, finding.evidence)
        for statement in finding.statements:
            add(finding.pid, statement.evidence)
        for stack in finding.stacks:
            add(stack.thread.pid, stack.evidence)
    for note in report.notes:
        add(note.pid, note.evidence)
    for error in report.errors:
        add(error.thread.pid, (error.evidence,))
    for code in report.coverage:
        add(code.pid, (variant.evidence for variant in code.warmup))
        for fared in code.threads:
            add(code.pid, fared.evidence)
    for cache in report.caches:
        for rejection in cache.rejections:
            add(cache.pid, rejection.evidence)
    for thread in report.threads:
        add(thread.thread.pid, (step.evidence for step in thread.ladder))
    return events


def locate(report: Report, folder: Path | None) -> EventLines:
    """Find the cited events in a run folder; without one, or without its files, nothing is found.

    Files are read line by line, and a line that is no event (a cut last line) is passed over.
    """
    if folder is None:
        return EventLines()
    wanted = cited(report)
    lines = EventLines()
    shorten = shortener(_home(folder))
    for path in (*event_files(folder), *segments(folder)):
        if wanted:
            with contextlib.suppress(OSError), open_regular(path) as file:
                _search(file, path.name, wanted, lines, shorten)
    return lines


def _home(folder: Path) -> str:
    """The home folder of whoever ran the program, which a report that is safe to share hides."""
    for path in event_files(folder)[:1]:
        with (
            contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError),
            open_regular(path) as file,
        ):
            return msgspec.json.decode(file.readline(_HEADER_BYTES), type=_Header).data.home
    return ""


def _search(
    file: Iterable[bytes],
    name: str,
    wanted: set[tuple[int, int]],
    lines: EventLines,
    shorten: Callable[[str], str],
) -> None:
    """Move what one file has of the wanted events from ``wanted`` to ``lines``."""
    heads = msgspec.json.Decoder(_Head)
    for number, raw in enumerate(file, 1):
        try:
            head = heads.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        key = (head.pid, head.seq)
        if key in wanted:
            text = raw.decode("utf-8", "backslashreplace").rstrip("\n")
            lines.found[key] = EventLine(
                head.pid, head.seq, name, number, shorten(text), shorten(head.source)
            )
            wanted.discard(key)
            if not wanted:
                return
