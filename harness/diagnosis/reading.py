"""What of a recording could not be read, and what of a long one is not told one by one."""

from collections.abc import Iterator, Sequence

from harness.causes import words
from harness.diagnosis import coverage, people
from harness.diagnosis.report import NotWatched
from harness.events.files import EVENTS, RUN, recordings
from harness.events.schema import SCHEMA_VERSION
from harness.statements import Note
from harness.timeline.recording import MAX_PROCESSES, Recording
from harness.timeline.timeline import Timeline


def gaps(recording: Recording, timelines: Sequence[Timeline]) -> Iterator[NotWatched]:
    """What could not be read. Evidence that is missing may have spoken for a finding."""
    yield from _missing(recording)
    yield from _files(recording)
    yield from _lines(recording)
    for timeline in timelines:
        yield from _process(timeline)
    if recording.processes_left_out:
        reason = f"it has more than {MAX_PROCESSES} processes; of the others nothing is told"
        yield NotWatched(name="recording", state="too long", reason=reason)
    if recording.deleted_segments:
        reason = (
            f"{words.count(recording.deleted_segments, 'segment')} of steady events (steps) were "
            "deleted to stay within the size limit"
        )
        yield NotWatched(name="steady events", state="deleted", reason=reason, decisive=False)


def notes(timeline: Timeline) -> list[Note]:
    """What of a long recording is counted and not listed."""
    folded, found = timeline.folded, []
    threads = folded.threads + max(len(timeline.threads) - people.MAX_THREADS, 0)
    if threads:
        found.append(f"{words.count(threads, 'more thread')} of this process are not listed")
    listed = len(coverage.shown(timeline))
    codes = folded.codes + sum(1 for _ in timeline.program_codes()) - listed
    if codes:
        number = words.count(codes, "more code object")
        found.append(f"{number} were compiled than are listed, each called by no more threads")
    return [Note(text=f"{text}.", pid=timeline.pid) for text in found]


def _missing(recording: Recording) -> Iterator[NotWatched]:
    """Recordings that were there when the program had ended, and are gone or shorter now."""
    there = recordings(recording.folder)
    known = recording.ended.recordings if recording.ended is not None else {}
    if there and EVENTS not in there and EVENTS not in known:
        yield NotWatched(name=EVENTS, state="missing", reason="the main process's is not there")
    for name, size in sorted(known.items()):
        if name not in there:
            reason = f"a process recorded it ({words.count(size, 'byte')}), and it is not there"
            yield NotWatched(name=name, state="missing", reason=reason)
        elif there[name] < size:
            reason = f"it had {words.count(size, 'byte')} at the end and has {there[name]:,} now"
            yield NotWatched(name=name, state="cut", reason=reason)


def _files(recording: Recording) -> Iterator[NotWatched]:
    if recording.empty:
        reason = f"{EVENTS} is there and holds nothing"
        yield NotWatched(name="recording", state="empty", reason=reason)
    for name, why in sorted(recording.lines.unreadable.items()):
        kept = name.startswith("events")
        reason = f"{name} cannot be read: {why}"
        yield NotWatched(name="recording", state="damaged", reason=reason, decisive=kept)
    for name, why in recording.unreadable.items():
        # Without run.json it is not known how many threads were to do their work.
        yield NotWatched(name=name, state="damaged", reason=why, decisive=name == RUN)


def _lines(recording: Recording) -> Iterator[NotWatched]:
    lines = recording.lines
    if lines.damaged:
        reason = f"{words.count(lines.damaged, 'line')} of the recording cannot be read"
        yield NotWatched(name="recording", state="damaged", reason=reason)
    if lines.cut:
        files = words.count(lines.cut, "file")
        reason = f"{files} of the recording ends in the middle of a line, which is left out"
        # A process killed while it wrote leaves such a line; its end is told by other means.
        yield NotWatched(name="recording", state="cut", reason=reason, decisive=False)
    if lines.newer:
        reason = (
            f"its format is version {lines.newer}, and this program knows {SCHEMA_VERSION}: it was "
            "read as far as it is known here"
        )
        yield NotWatched(name="recording", state="newer", reason=reason)
    for point, number in sorted(lines.unknown.items()):
        reason = f"{words.count(number, 'event')} of a point that this version does not know"
        yield NotWatched(name=point, state="unknown", reason=reason, decisive=False)


def _process(timeline: Timeline) -> Iterator[NotWatched]:
    of = f"of process {timeline.pid}"
    if timeline.header is None:
        reason = f"the recording {of} has no header: versions and settings are not known"
        yield NotWatched(name="recording", state="damaged", reason=reason)
    if timeline.repeated:
        events = words.count(timeline.repeated, "event")
        reason = f"{events} {of} have a number that was there before, and are left out"
        yield NotWatched(name="recording", state="damaged", reason=reason)
    if timeline.clock_back:
        reason = (
            f"the clock went back {words.times(timeline.clock_back)} in a thread {of}: what is "
            "said to have happened at once, and for how long, may be wrong"
        )
        yield NotWatched(name="recording", state="clock", reason=reason)
    if timeline.folded.reads:
        reads = words.count(timeline.folded.reads, "read")
        reason = f"{reads} of futures {of} are left out: errors in them may have been asked for"
        yield NotWatched(name="recording", state="too long", reason=reason, decisive=False)
    if timeline.folded.events:
        events = words.count(timeline.folded.events, "event")
        reason = f"{events} {of} are left out: it has more threads than are followed"
        yield NotWatched(name="recording", state="too long", reason=reason)
