"""The sections on threads and on errors."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from harness.causes import versions, words
from harness.causes.errors import handled, torchs_own
from harness.diagnosis.report import ErrorReport, LadderStep, ThreadReport
from harness.timeline.contexts import describe
from harness.timeline.ladder import Rung
from harness.timeline.model import Config, ErrorSeen, Thread
from harness.timeline.timeline import Timeline

MAX_THREADS = 1024
"""So many threads of a process are listed."""

Role = Literal["main", "workload", "autograd", "other"]


def threads(timeline: Timeline) -> list[ThreadReport]:
    """Every thread seen, workload threads first, in order of their first call."""
    order = {"main": 0, "workload": 1, "autograd": 2, "other": 3}
    found = sorted(
        timeline.threads.values(),
        key=lambda thread: (order[role(timeline, thread)], thread.first_call or 0, thread.t0),
    )
    seen = _Seen(timeline)
    return [_thread(timeline, thread, seen) for thread in found[:MAX_THREADS]]


def role(timeline: Timeline, thread: Thread) -> Role:
    """What a thread is there for."""
    if thread.tid == timeline.main_tid:
        return "main"
    if thread.autograd:
        return "autograd"
    return "workload" if thread.called_compiled else "other"


def _behalf(timeline: Timeline, thread: Thread) -> Iterable[int]:
    """For whom autograd's thread was seen to work; else for whom it may have."""
    return timeline.callers_of(thread.tid)


def errors(timeline: Timeline, explained: Mapping[int, tuple[str, ...]]) -> list[ErrorReport]:
    """Every error that ended a thread, a future's call or the program, in order of time."""
    return [
        _error(timeline, error, explained.get(error.seq, ()))
        for error in sorted(timeline.errors, key=lambda error: error.t)
    ]


class _Seen:
    """What all threads did with compiled code, counted once for all."""

    def __init__(self, timeline: Timeline) -> None:
        self.compiles: Counter[int] = Counter()
        self.misses: Counter[int] = Counter()
        for history in timeline.program_codes():
            for call in history.uncovered:  # these stand for those that were folded, too
                if call.compile is not None:
                    self.compiles[call.compile.on] += call.times
            for tid, sighting in history.sightings.items():
                self.misses[tid] += sighting.misses
        contexts = [t.context.config for t in timeline.threads.values() if t.context]
        # Values that all threads saw, as Python compares them.
        first, *others = contexts or [{}]
        self.common = {
            key: value
            for key, value in first.items()
            if all(key in config and config[key] == value for config in others)
        }


def _thread(timeline: Timeline, thread: Thread, seen: _Seen) -> ThreadReport:
    return ThreadReport(
        thread=words.ref(timeline, thread.tid),
        role=role(timeline, thread),
        created_by=None if thread.creator is None else words.ref(timeline, thread.creator),
        creation_stack=thread.creation,
        first_context="" if thread.context is None else describe(thread.context),
        config=_config(timeline, thread, seen),
        device=thread.device if thread.autograd else "",
        behalf=words.refs(timeline, _behalf(timeline, thread)),
        compiled_calls=thread.called_compiled,
        backwards=thread.backwards,
        compiles=seen.compiles[thread.tid],
        misses=seen.misses[thread.tid],
        steps=thread.steps,
        ladder=tuple(_step(timeline, rung) for rung in thread.ladder.rungs()),
        left_out=thread.ladder.left_out,
        ended=thread.ended,
    )


def _config(timeline: Timeline, thread: Thread, seen: _Seen) -> Config:
    own = dict(thread.context.config) if thread.context else {}
    if timeline.torch >= versions.CONFIG_PER_THREAD or timeline.torch == versions.UNKNOWN:
        return own
    # The config is the process's, so a value that only some threads saw is one that a call of
    # compiled code had patched in just then, and none of the thread's.
    return {key: value for key, value in own.items() if key in seen.common}


def _step(timeline: Timeline, rung: Rung) -> LadderStep:
    return LadderStep(
        t_s=round(timeline.seconds(rung.t0), 6),
        what=rung.what,
        detail=rung.detail,
        duration_s=None if rung.t1 is None else round((rung.t1 - rung.t0) / 1e9, 6),
        open=rung.span and rung.t1 is None,
        evidence=rung.seq,
    )


def _error(timeline: Timeline, error: ErrorSeen, codes: tuple[str, ...]) -> ErrorReport:
    return ErrorReport(
        thread=words.ref(timeline, error.tid),
        via=error.via,
        type=error.error.type,
        message=error.error.message,
        chain=error.chain,
        t_s=round(timeline.seconds(error.t), 6),
        evidence=error.seq,
        explained_by=codes,
        read=handled(timeline, error) if error.via == "future" else None,
        torchs_own=not codes and torchs_own(timeline, error),
    )
