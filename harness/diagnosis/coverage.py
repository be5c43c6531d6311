"""The coverage section: what the warm-up compiled, who missed it, and why."""

import itertools
from collections import defaultdict

from harness.causes import words
from harness.diagnosis.report import (
    CodeCoverage,
    CodeRef,
    ThreadCoverage,
    Variant,
)
from harness.events.values import Code, Context
from harness.timeline.contexts import describe, difference, shapes
from harness.timeline.history import CodeHistory
from harness.timeline.judging import Judgement, seqs_of
from harness.timeline.model import Compile, Uncovered
from harness.timeline.reasons import THREAD_STATE
from harness.timeline.timeline import Timeline

MAX_VARIANTS = 32
MAX_REASONS = 4
MAX_CODES = 256
MAX_THREADS = 256


def coverage(timeline: Timeline) -> list[CodeCoverage]:
    """Coverage of every compiled code object of the program's, in order of appearance."""
    # One that was compiled before the watch began may never have been called since.
    return [_coverage(timeline, history) for history in shown(timeline) if history.sightings]


def shown(timeline: Timeline) -> list[CodeHistory]:
    """The code objects that are listed: where they are too many, those that more threads called."""
    found = list(timeline.program_codes())
    if len(found) <= MAX_CODES:
        return found
    by_threads = sorted(found, key=lambda history: len(history.sightings), reverse=True)
    chosen = {id(history) for history in by_threads[:MAX_CODES]}
    return [history for history in found if id(history) in chosen]


def code_ref(code: Code) -> CodeRef:
    """A reference to a code object."""
    return CodeRef(id=code.id, name=code.name, file=code.file, line=code.line)


def _coverage(timeline: Timeline, history: CodeHistory) -> CodeCoverage:
    warmup = tuple(_variant(timeline, c) for c in history.warmup()[:MAX_VARIANTS])
    tids = sorted(history.sightings, key=lambda tid: history.sightings[tid].t0)
    calls: dict[int, list[Uncovered]] = defaultdict(list)
    for call in history.uncovered:
        calls[call.tid].append(call)
    makers = {compile_.tid for compile_ in history.warmup()}
    threads = tuple(
        _thread(timeline, history, tid, calls[tid], makes_warmup=tid in makers)
        for tid in tids[:MAX_THREADS]
    )
    return CodeCoverage(
        code=code_ref(history.code),
        pid=timeline.pid,
        warmup=warmup,
        threads=threads,
        left_out=max(len(tids) - MAX_THREADS, 0),
    )


def _variant(timeline: Timeline, compile_: Compile) -> Variant:
    return Variant(
        compile_id=compile_.compile_id,
        thread=words.ref(timeline, compile_.tid),
        context=describe(compile_.context),
        inputs=shapes(compile_.inputs),
        ok=compile_.ok,
        evidence=compile_.seqs[0],
    )


def _thread(
    timeline: Timeline,
    history: CodeHistory,
    tid: int,
    own: list[Uncovered],
    *,
    makes_warmup: bool,
) -> ThreadCoverage:
    uncovered = [call for call in own if not history.made_in_warmup(call.compile)]
    context = _context(timeline, history, tid, uncovered or own)
    if timeline.is_autograd(tid):
        return _autograd(timeline, history, tid, own, context)
    if uncovered:
        return _uncovered(timeline, history, tid, uncovered, context)
    return ThreadCoverage(
        thread=words.ref(timeline, tid),
        state="warm-up" if makes_warmup else "covered",
        # That it neither missed nor compiled was seen only as far as misses are.
        certainty="observed" if makes_warmup else "inferred",
        context=describe(context),
        compiles=_compiles(own),
        misses=history.sightings[tid].misses,
        evidence=(history.sightings[tid].seq,),
    )


def _uncovered(
    timeline: Timeline,
    history: CodeHistory,
    tid: int,
    calls: list[Uncovered],
    context: Context | None,
) -> ThreadCoverage:
    judged = [j for call in calls if (j := timeline.judgements().get(id(call))) is not None]
    return ThreadCoverage(
        thread=words.ref(timeline, tid),
        state="uncovered",
        certainty="observed",
        context=describe(context),
        differs=tuple(dict.fromkeys(text for j in judged for text in differs(j))),
        misses=history.sightings[tid].misses,
        compiles=_compiles(calls),
        reasons=_reasons(calls),
        evidence=words.seqs(*(seqs_of(call) for call in calls)),
    )


def _autograd(
    timeline: Timeline,
    history: CodeHistory,
    tid: int,
    calls: list[Uncovered],
    context: Context | None,
) -> ThreadCoverage:
    seen = history.sightings[tid]
    return ThreadCoverage(
        thread=words.ref(timeline, tid),
        state="autograd",
        certainty="inferred",
        context=describe(context),
        misses=seen.misses,
        compiles=_compiles(calls),
        reasons=_reasons(calls),
        behalf=words.refs(timeline, (thread.tid for thread in timeline.served_by(tid))),
        evidence=words.seqs((seen.seq,), *(seqs_of(call) for call in calls)),
    )


def _compiles(calls: list[Uncovered]) -> int:
    return sum(call.times for call in calls if call.compile is not None)


def _reasons(calls: list[Uncovered]) -> tuple[str, ...]:
    compiles = [call.compile for call in calls if call.compile is not None]
    texts = (reason.text.strip() for compile_ in compiles for reason in compile_.reasons)
    return tuple(itertools.islice(dict.fromkeys(texts), MAX_REASONS))


def differs(judgement: Judgement) -> list[str]:
    """What differed between the nearest entry and the call, in words."""
    found = []
    for guard in sorted(judgement.guards, key=lambda guard: guard.value):
        detail = difference(guard, judgement.entry.context, judgement.call.context)
        found.append(detail if detail and guard in THREAD_STATE else guard.value)
    return found


def _context(
    timeline: Timeline, history: CodeHistory, tid: int, calls: list[Uncovered]
) -> Context | None:
    for call in calls:
        if call.context is not None:
            return call.context
    for compile_ in history.compiles if tid in history.makers else ():
        if compile_.tid == tid and compile_.context is not None:
            return compile_.context
    thread = timeline.threads.get(tid)
    return thread.context if thread else None
