"""What was not watched, not reached or not known, and whether it leaves the verdict open."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation
from harness.diagnosis import reading, texts
from harness.diagnosis.report import NotWatched
from harness.events.ended import Ended
from harness.events.files import ENDED, GUARDIAN_FAILURE, read_whole
from harness.timeline.recording import Recording
from harness.timeline.timeline import Timeline


@dataclass(frozen=True)
class Expectations:
    """What a program must have done for its verdict to count.

    Attributes:
        threads: so many threads besides the main one must have called compiled code and backward.
    """

    threads: int | None = None


_LATER_PROBES = frozenset(
    {"autotune", "cuda_graphs", "eager", "forks", "is_compiling", "reset", "stance"}
)
"""Probes that the first recordings were made without: what they did watch still counts."""


_THE_END = "the program's end"
_NEVER_IN_PROCESS = frozenset({"is_compiling"})
"""Probes that a watch in a program that runs already does without: that is its limit."""


def gaps(
    recording: Recording,
    timelines: Sequence[Timeline],
    explanations: Sequence[Explanation],
) -> list[NotWatched]:
    """Everything that was not watched, without repeats."""
    if any(timeline.from_text for timeline in timelines):
        return texts.gaps(timelines, recording.run.replay if recording.run else "")
    found: list[NotWatched] = []
    for timeline in timelines:
        found += _probes(timeline, explanations)
        found += _recorder(timeline)
        found += _detail(timeline)
        found += _before(timeline)
        found += _schedule(timeline)
    if not timelines and interrupted_early(recording):
        reason = "it was interrupted from the keyboard before anything was recorded"
        found.append(NotWatched(name=_THE_END, state="not reached", reason=reason))
    found += reading.gaps(recording, timelines)
    if timelines:
        found += _ending(timelines[0], recording)
    return list(dict.fromkeys(found))


def interrupted_early(recording: Recording) -> bool:
    """Whether Ctrl-C accounts for a recording that holds nothing.

    It does not if the watch says why it failed, or if something had been recorded by the end.
    """
    ended = recording.ended
    return (
        ended is not None
        and ended.interrupted
        and not ended.child_failure
        and not any(ended.recordings.values())
    )


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
    in_process = timeline.header is not None and timeline.header.data.in_process
    for probe in timeline.probes.values():
        if probe.state not in {"live", "idle"}:
            codes = _codes(probe.name, explanations)
            reason = probe.reason or f"the probe is {probe.state}"
            decisive = not (in_process and probe.name in _NEVER_IN_PROCESS)
            yield NotWatched(
                name=probe.name, state=probe.state, reason=reason, codes=codes, decisive=decisive
            )
    if timeline.end_seq is None or not timeline.probes:
        return
    needed = dict.fromkeys(name for explanation in explanations for name in explanation.needs)
    for name in needed:
        if name not in timeline.probes:
            codes = _codes(name, explanations)
            reason = "the recording says nothing of this probe"
            later = name in _LATER_PROBES
            yield NotWatched(
                name=name, state="absent", reason=reason, codes=codes, decisive=not later
            )


def _codes(probe: str, explanations: Sequence[Explanation]) -> tuple[str, ...]:
    return tuple(sorted(e.code for e in explanations if probe in e.needs))


def _recorder(timeline: Timeline) -> Iterator[NotWatched]:
    if timeline.lost:
        reason = f"{words.count(timeline.lost, 'event')} of process {timeline.pid} are missing"
        # A killed process may have numbered an event that it could not write any more.
        decisive = timeline.end_seq is not None
        yield NotWatched(name="recorder", state="lost", reason=reason, decisive=decisive)
    if timeline.cut_off:
        reason = (
            f"{words.count(timeline.cut_off, 'event')} of process {timeline.pid} cut off: a thread "
            "was writing when the program ended"
        )
        yield NotWatched(name="recorder", state="cut off", reason=reason, decisive=False)
    for point, number in sorted(timeline.left_out.items()):
        # What is left out is like thousands of events that were kept, so nothing hangs on it.
        about = "" if timeline.end_seq is not None else "at least "
        reason = (
            f"{about}{words.count(number, 'event')} of process {timeline.pid} left out: there were "
            "thousands like them, and the recording is bounded"
        )
        yield NotWatched(name=point, state="left out", reason=reason, decisive=False)


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


def _before(timeline: Timeline) -> Iterator[NotWatched]:
    """What a watch that began in a program that ran already could not see."""
    before = timeline.entries_before()
    if not before:
        return
    number = words.count(sum(before.values()), "entry", "entries")
    names = words.listing([f"`{name}`" for name in reversed(before)])
    reason = (
        f"{number} of {names} had been compiled before the watch began: by whom, and for which "
        "inputs, was not seen. They are taken for a warm-up by the thread that began it"
    )
    yield NotWatched(name="earlier compiles", state="not watched", reason=reason, decisive=False)


def _schedule(timeline: Timeline) -> Iterator[NotWatched]:
    """What of a schedule did not happen."""
    schedule = timeline.schedule
    if schedule is None or schedule.state == "done":
        return
    if schedule.strategy != "holds":
        if timeline.end_seq is None:
            reason = "the program ended before its schedule did"
            yield NotWatched(name="schedule", state="not reached", reason=reason, decisive=False)
        return
    reached = max(schedule.reached, len(timeline.passes))
    if reached >= len(schedule.holds):
        return  # the process died with its last hold passed
    state = "impossible" if schedule.state == "impossible" else "not reached"
    why = schedule.reason or "the process ended first"
    hold = f"hold {reached + 1} of {len(schedule.holds)}, {schedule.holds[reached]},"
    yield NotWatched(name="schedule", state=state, reason=f"{hold} {state}: {why}")


def _ending(main: Timeline, recording: Recording) -> Iterator[NotWatched]:
    name, state = _THE_END, "not reached"
    ended = recording.ended
    if ended is None:
        # The recording's own end comes before the interpreter's: a program can still crash then.
        unreadable = ENDED in recording.unreadable
        why = f"{ENDED} cannot be read" if unreadable else f"no {ENDED} is there"
        also = ", and the recording has no end" if main.end_seq is None else ""
        reason = f"how the program ended is not known ({why}){also}"
        yield NotWatched(name=name, state="unknown", reason=reason)
        yield from _guardian(recording)
        return
    reason = _not_reached(main, ended)
    if reason:
        yield NotWatched(name=name, state=state, reason=reason)
    if ended.disk_full:
        reason = "the disk was full: later events may be missing"
        yield NotWatched(name="recorder", state="lost", reason=reason)
    yield from _unwatched(ended)
    if ended.guardian_failure:
        reason = (
            f"{ended.guardian_failure}; had the harness been killed, the program would have run on"
        )
        yield NotWatched(name="the guardian", state="failed", reason=reason, decisive=False)
    if ended.child_failure:
        reason = ended.child_failure.strip().splitlines()[-1]
        yield NotWatched(name="the watch", state="failed", reason=reason)


def _unwatched(ended: Ended) -> Iterator[NotWatched]:
    """Python processes that recorded nothing; one without torch compiled nothing either."""
    for child in ended.unwatched:
        how = f"with {child.option}" if child.option else "with an environment of its own"
        what = "leave that option out" if child.option else "hand on the environment that it has"
        has = "it had torch loaded" if child.torch else "it had no torch loaded when it was seen"
        reason = (
            f"the program started `{child.command}` (process {child.pid}) {how}, which kept the "
            f"watch out: nothing of it was recorded, and {has}. To have it watched {what}"
        )
        yield NotWatched(
            name="child process", state="not watched", reason=reason, decisive=child.torch
        )


def _guardian(recording: Recording) -> Iterator[NotWatched]:
    """Why the guardian could not write down how the program ended, if it says so."""
    with contextlib.suppress(OSError):
        raw = read_whole(recording.folder / GUARDIAN_FAILURE)
        last = raw.decode("utf-8", "replace").strip().splitlines()[-1:] or ["it does not say why"]
        reason = f"it ended the program and could not finish the run: {last[0]}"
        yield NotWatched(name="the guardian", state="failed", reason=reason, decisive=False)


def _not_reached(main: Timeline, ended: Ended) -> str:
    """Why the program did not come to an end of its own; empty if it did."""
    busy = ended.deadline_hit and not ended.idle_at_deadline
    reasons = (
        (busy, f"it was still busy at the time limit of {ended.timeout_s:g} s"),
        (ended.stopped_on, f"it was ended early, as was asked for: {ended.stopped_on}"),
        (ended.parent_killed, "the harness was killed while it ran, and its guardian ended it"),
        (ended.told_to_end, f"the harness was told to end by {ended.told_to_end}"),
        (
            ended.killed_from_outside,
            f"it was killed from outside by {ended.signal_name or 'a signal'}",
        ),
        (ended.interrupted, "it was interrupted from the keyboard"),
        (
            ended.exit_code == 0 and main.end_seq is None,
            (
                "it ended with exit code 0, but its recording has no end: it left past Python's "
                "exit handlers, or the recording was cut short"
            ),
        ),
    )
    return next((reason for holds, reason in reasons if holds), "")
