"""CR306: ``torch._dynamo.reset()`` in one thread while others call compiled code."""

import re
from collections.abc import Sequence

from harness.causes import crashed, signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.crashed import Crash
from harness.causes.endings import CRASHES, crash_signal, stacks_kept
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline import frames
from harness.timeline.model import ResetSeen
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR306",
    title="reset-under-load",
    what=(
        "`torch._dynamo.reset()` (or `torch.compiler.reset()`) ran in one thread while another one "
        "was inside a call of compiled code: the process dies of SIGSEGV, the reset raises "
        "`AssertionError: Cannot clear callbacks while 1 are pending`, or it goes well by luck and "
        "every thread compiles again."
    ),
    why=(
        "A reset frees the cache entries and the guards of every code object. It takes dynamo's "
        "compile lock, which keeps compiles out, but a cached call takes no lock: it goes on with "
        "a guard tree or an entry that was freed under it."
    ),
    evidence=(
        "A reset at whose beginning or end another thread was inside a call of compiled code or a "
        "compile; or a crash in such a call, in a process that resets while other threads call; "
        "or torch's assertion."
    ),
    remedy=Remedy(
        text=(
            "Reset only while no thread calls compiled code: join the threads first, or keep them "
            "at a barrier. To be rid of one function's entries compile a new function instead."
        ),
        snippet=("for thread in threads:\n    thread.join()\ntorch._dynamo.reset()"),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all (seen on 2.11.0, 2.13.0 and 2.14.1)",
    needs=("reset", "threads", "wrapper"),
)

_PENDING = (
    Signature(
        types=("AssertionError",), text=re.compile(r"Cannot clear callbacks while \d+ are pending")
    ),
    # Up to torch 2.11 it has no message.
    Signature(
        types=("AssertionError",),
        text=re.compile(r"^$"),
        files=("torch/_dynamo/callback.py",),
        function="clear",
        innermost=True,
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Resets that other threads' calls met, and the crash or the error that came of one."""
    met = [reset for reset in timeline.resets if reset.met or reset.compiling]
    pending = signatures.cases(timeline, _PENDING)
    crash = _crash(timeline, met, earlier)
    if not met and not pending and crash is None:
        return Outcome()
    return Outcome(found=[_finding(timeline, met, pending, crash)])


def _crash(
    timeline: Timeline, met: Sequence[ResetSeen], earlier: Sequence[Found]
) -> tuple[int, Crash | None] | None:
    """The signal of a crash that a reset made, and where it was, as far as that is known."""
    number = crash_signal(timeline)
    if number is None or not timeline.resets or any(found.ends for found in earlier):
        return None
    crash = crashed.crashed(timeline)
    if crash is None:
        return (number, None) if met else None
    inside = any(frames.is_torch(f) and "/_dynamo/" in f.file for f in crash.frames)
    if not inside or not (met or _beside(timeline)):
        return None
    return number, crash


def _beside(timeline: Timeline) -> list[int]:
    """Threads that had called compiled code, and had not ended, when another one began a reset."""
    return [
        thread.tid
        for thread in timeline.workload_threads()
        if any(
            thread.tid != reset.tid
            and (thread.first_call or 0) <= reset.t0
            and not (thread.ended and thread.t1 < reset.t0)
            for reset in timeline.resets
        )
    ]


def _finding(
    timeline: Timeline,
    met: Sequence[ResetSeen],
    pending: Sequence[Case],
    crash: tuple[int, Crash | None] | None,
) -> Found:
    resets = list(met) or timeline.resets
    resetting = list(dict.fromkeys([*(r.tid for r in resets), *(c.error.tid for c in pending)]))
    callers = list(dict.fromkeys(tid for r in met for tid in (*r.met, *r.compiling)))
    callers = callers or _beside(timeline)
    who = words.names(timeline, callers) if callers else "another thread"
    ended = timeline.ended
    statements = [
        *([_met(timeline, met)] if met else []),
        *([_alongside(timeline, callers)] if crash and not met else []),
        *(signatures.statement(timeline, case) for case in pending),
        *(_crashed(timeline, *crash) if crash else ()),
        *(stacks_kept(ended) if crash and ended else ()),
    ]
    stacks = [words.stack(timeline, r.tid, "reset dynamo", r.where, r.seqs[0]) for r in resets[:1]]
    if crash and crash[1]:
        stacks.append(crashed.stack(timeline, crash[1]))
    died = f"the process died of {CRASHES[crash[0]]}" if crash else ""
    result = died or ("the reset raised" if pending else "the call lost its cache entries")
    return Found(
        code="CR306",
        statements=tuple(statements),
        headline=(
            f"{words.begin(words.object_(timeline, resetting))} ran `torch._dynamo.reset()` while "
            f"{who} called compiled code: {result}."
        ),
        explains=frozenset(seq for reset in resets for seq in reset.seqs)
        | signatures.explained(timeline, _PENDING)
        | _compiled_again(timeline, resets),
        ends=crash is not None,
        threads=words.refs(timeline, [*resetting, *callers]),
        stacks=tuple(stacks) or signatures.stacks(timeline, pending),
        shared_state=SharedState(
            name="dynamo's cache entries and guards",
            writer=f"{words.names(timeline, resetting)}, freeing them",
            reader=f"{who}, in a call that uses them",
        ),
    )


def _compiled_again(timeline: Timeline, resets: Sequence[ResetSeen]) -> frozenset[int]:
    """Events of the calls that found no entry after a reset, where there had been one."""
    return frozenset(
        seq
        for history in timeline.program_codes()
        for call in history.uncovered
        for reset in resets
        if call.compile is not None
        and reset.t0 <= call.compile.t0
        and history.entries_before(reset.t0)
        for seq in (*call.seqs, *call.compile.seqs)
    )


def _met(timeline: Timeline, met: Sequence[ResetSeen]) -> Statement:
    first = met[0]
    inside = list(dict.fromkeys(tid for reset in met for tid in reset.met))
    compiling = [tid for r in met for tid in r.compiling if tid not in inside]
    parts = [
        f"{words.names(timeline, tids)} {'was' if len(set(tids)) == 1 else 'were'} inside {what}"
        for tids, what in ((inside, "a call of compiled code"), (compiling, "a compile"))
        if tids
    ]
    text = (
        f"When `{timeline.name(first.tid)}` ran `torch._dynamo.reset()` "
        f"({words.count(len(met), 'recorded reset')} of the kind), {' and '.join(parts)}."
    )
    return Statement(text, "observed", words.seqs(*(reset.seqs for reset in met)))


def _alongside(timeline: Timeline, callers: Sequence[int]) -> Statement:
    text = (
        f"{words.begin(words.object_(timeline, callers))} called compiled code in the period in "
        f"which it was reset ({words.count(len(timeline.resets), 'recorded reset')}); that a call "
        "was under way is not recorded."
    )
    seqs = words.seqs(*(reset.seqs for reset in timeline.resets))
    return Statement(text, "inferred", seqs)


def _crashed(timeline: Timeline, number: int, crash: Crash | None) -> tuple[Statement, ...]:
    ended = timeline.ended
    own = ended is not None and ended.signal is not None
    how = "ended the process" if own else "ended it, to judge by its exit code"
    last = timeline.resets[-1]
    when = "in the middle of a reset" if last.t1 is None else "after a reset"
    said = Statement(f"{CRASHES[number]} {how}, {when}.", "inferred", words.seqs(last.seqs))
    return (said, *([crashed.statement(timeline, crash)] if crash else []))
