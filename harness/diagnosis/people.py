"""The sections on threads and on errors."""

from collections.abc import Mapping
from typing import Literal

from harness.causes import versions, words
from harness.causes.errors import handled, torchs_own
from harness.diagnosis.report import ErrorReport, LadderStep, ThreadReport
from harness.timeline.contexts import describe
from harness.timeline.model import Config, ErrorSeen, Rung, Thread
from harness.timeline.timeline import Timeline

Role = Literal["main", "workload", "autograd", "other"]


def threads(timeline: Timeline) -> list[ThreadReport]:
    """Every thread seen, workload threads first, in order of their first call."""
    order = {"main": 0, "workload": 1, "autograd": 2, "other": 3}
    found = sorted(
        timeline.threads.values(),
        key=lambda thread: (order[role(timeline, thread)], thread.first_call or 0, thread.t0),
    )
    return [_thread(timeline, thread) for thread in found]


def role(timeline: Timeline, thread: Thread) -> Role:
    """What a thread is there for."""
    if thread.tid == timeline.main_tid:
        return "main"
    if thread.autograd:
        return "autograd"
    return "workload" if thread.called_compiled else "other"


def errors(timeline: Timeline, explained: Mapping[int, tuple[str, ...]]) -> list[ErrorReport]:
    """Every error that ended a thread, a future's call or the program, in order of time."""
    return [
        _error(timeline, error, explained.get(error.seq, ()))
        for error in sorted(timeline.errors, key=lambda error: error.t)
    ]


def _thread(timeline: Timeline, thread: Thread) -> ThreadReport:
    history = [h for h in timeline.program_codes() if thread.tid in h.sightings]
    compiles = sum(c.on == thread.tid for h in timeline.program_codes() for c in h.compiles)
    return ThreadReport(
        thread=words.ref(timeline, thread.tid),
        role=role(timeline, thread),
        created_by=None if thread.creator is None else words.ref(timeline, thread.creator),
        creation_stack=thread.creation,
        first_context="" if thread.context is None else describe(thread.context),
        config=_config(timeline, thread),
        behalf=words.refs(timeline, (t.tid for t in timeline.served_by(thread.tid))),
        compiled_calls=thread.called_compiled,
        backwards=thread.backwards,
        compiles=compiles,
        misses=sum(h.sightings[thread.tid].misses for h in history),
        steps=thread.steps,
        ladder=tuple(_step(timeline, rung) for rung in thread.ladder.rungs()),
        left_out=thread.ladder.left_out,
        ended=thread.ended,
    )


def _config(timeline: Timeline, thread: Thread) -> Config:
    own = dict(thread.context.config) if thread.context else {}
    if timeline.torch >= versions.CONFIG_PER_THREAD or timeline.torch == versions.UNKNOWN:
        return own
    # The config is the process's, so a value that only some threads saw is one that a call of
    # compiled code had patched in just then, and none of the thread's.
    seen = [t.context.config for t in timeline.threads.values() if t.context]
    return {
        key: value
        for key, value in own.items()
        if all(key in config and config[key] == value for config in seen)
    }


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
