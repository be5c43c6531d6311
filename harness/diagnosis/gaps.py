"""What was not watched, not reached or not known, and whether it leaves the verdict open."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation
from harness.causes.judging import judgements
from harness.diagnosis.report import NotWatched
from harness.events.ended import Ended
from harness.timeline.reasons import Guard
from harness.timeline.recording import Recording
from harness.timeline.timeline import Timeline


@dataclass(frozen=True)
class Expectations:
    """What a program must have done for its verdict to count.

    Attributes:
        threads: so many threads besides the main one must have called compiled code and backward.
    """

    threads: int | None = None


_UNBUILT = {
    Guard.NUM_THREADS: ("CR105", "num_threads"),
    Guard.NUMERIC: ("CR106", "a numeric flag (dtype, tf32, deterministic algorithms)"),
}
"""Thread state that can make threads miss and that no cause here looks at."""


def gaps(
    recording: Recording,
    timelines: Sequence[Timeline],
    explanations: Sequence[Explanation],
) -> list[NotWatched]:
    """Everything that was not watched, without repeats."""
    found: list[NotWatched] = []
    for timeline in timelines:
        found += _probes(timeline, explanations)
        found += _recorder(timeline)
        found += _detail(timeline)
        found += _unbuilt(timeline)
    found += _reading(recording)
    if timelines:
        found += _ending(timelines[0], recording.ended)
    return list(dict.fromkeys(found))


def unmet(expectations: Expectations, timelines: Sequence[Timeline]) -> list[NotWatched]:
    """Expectations that were not met."""
    if expectations.threads is None:
        return []
    able = [
        thread
        for timeline in timelines
        for thread in timeline.workload_threads()
        if thread.tid != timeline.main_tid and thread.backwards
    ]
    if len(able) >= expectations.threads:
        return []
    reason = (
        f"{words.count(len(able), 'thread')} called compiled code and backward, "
        f"{expectations.threads} should have"
    )
    return [NotWatched(name="threads", state="not reached", reason=reason)]


def _probes(timeline: Timeline, explanations: Sequence[Explanation]) -> Iterator[NotWatched]:
    for probe in timeline.probes.values():
        if probe.state not in {"live", "idle"}:
            codes = _codes(probe.name, explanations)
            reason = probe.reason or f"the probe is {probe.state}"
            yield NotWatched(name=probe.name, state=probe.state, reason=reason, codes=codes)
    if timeline.end_seq is None or not timeline.probes:
        return
    needed = dict.fromkeys(name for explanation in explanations for name in explanation.needs)
    for name in needed:
        if name not in timeline.probes:
            codes = _codes(name, explanations)
            reason = "the recording says nothing of this probe"
            yield NotWatched(name=name, state="absent", reason=reason, codes=codes)


def _codes(probe: str, explanations: Sequence[Explanation]) -> tuple[str, ...]:
    return tuple(sorted(e.code for e in explanations if probe in e.needs))


def _recorder(timeline: Timeline) -> Iterator[NotWatched]:
    if timeline.lost:
        reason = f"{words.count(timeline.lost, 'event')} of process {timeline.pid} are missing"
        # A killed process may have numbered an event that it could not write any more.
        decisive = timeline.end_seq is not None
        yield NotWatched(name="recorder", state="lost", reason=reason, decisive=decisive)


def _detail(timeline: Timeline) -> Iterator[NotWatched]:
    header = timeline.header
    if header is None:
        return
    if not header.data.compile_detail:
        reason = "switched off: compiles are counted one way only, and no guard is named"
        yield NotWatched(name="compile detail", state="disabled", reason=reason, decisive=False)
        return
    if timeline.detail_disagreed and timeline.detail is not None:
        reason = (
            f"torch's trace log tells of {timeline.detail.metrics} compiles, the probe of "
            f"{timeline.detail.compiles}"
        )
        yield NotWatched(name="compile detail", state="conflict", reason=reason)
    elif timeline.detail is None and timeline.end_seq is not None and timeline.compiles():
        reason = "the two counts of compiles were never compared"
        yield NotWatched(name="compile detail", state="absent", reason=reason)


def _unbuilt(timeline: Timeline) -> Iterator[NotWatched]:
    for judgement in judgements(timeline):
        named = [guard for guard in _UNBUILT if guard in judgement.guards]
        if named and not judgement.own and judgement.guards <= set(_UNBUILT):
            code, state = _UNBUILT[named[0]]
            reason = (
                f"calls of `{judgement.call.code.name}` in a thread met no fitting entry over "
                f"{state}, which no cause of this version looks at"
            )
            yield NotWatched(name=code, state="not built", reason=reason, codes=(code,))


def _reading(recording: Recording) -> Iterator[NotWatched]:
    lines = recording.lines
    if lines.damaged:
        reason = f"{words.count(lines.damaged, 'line')} of the recording cannot be read"
        yield NotWatched(name="recording", state="damaged", reason=reason)
    for point, number in sorted(lines.unknown.items()):
        reason = f"{words.count(number, 'event')} of a point that this version does not know"
        yield NotWatched(name=point, state="unknown", reason=reason, decisive=False)
    if recording.deleted_segments:
        reason = (
            f"{words.count(recording.deleted_segments, 'segment')} of steady events (steps) were "
            "deleted to stay within the size limit"
        )
        yield NotWatched(name="steady events", state="deleted", reason=reason, decisive=False)


def _ending(main: Timeline, ended: Ended | None) -> Iterator[NotWatched]:
    name, state = "the program's end", "not reached"
    if ended is None:
        if main.end_seq is None:
            reason = "how the program ended is not known, and the recording has no end"
            yield NotWatched(name=name, state=state, reason=reason)
        return
    if ended.deadline_hit and not ended.idle_at_deadline:
        reason = f"it was still busy at the time limit of {ended.timeout_s:g} s"
        yield NotWatched(name=name, state=state, reason=reason)
    elif ended.killed_from_outside:
        by = ended.signal_name or "a signal"
        yield NotWatched(name=name, state=state, reason=f"it was killed from outside by {by}")
    elif ended.interrupted:
        yield NotWatched(name=name, state=state, reason="it was interrupted from the keyboard")
    elif ended.exit_code == 0 and main.end_seq is None:
        reason = "it ended with exit code 0 without running its exit handlers (os._exit)"
        yield NotWatched(name=name, state=state, reason=reason)
    if ended.disk_full:
        reason = "the disk was full: later events may be missing"
        yield NotWatched(name="recorder", state="lost", reason=reason)
    if ended.child_failure:
        reason = ended.child_failure.strip().splitlines()[-1]
        yield NotWatched(name="the watch", state="failed", reason=reason)
