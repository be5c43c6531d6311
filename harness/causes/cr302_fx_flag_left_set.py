"""CR302: the FX-tracing flag stayed set with nobody tracing."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.fx_flag import FLAG, is_fx_text, orphans, set_at_end
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import FlaggedCall
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR302",
    title="fx-flag-left-set",
    what=(
        "From some moment on every compiled call in every thread raises the FX error (or, with "
        "`error_on_nested_fx_trace=False`, runs eagerly without a word), although nothing traces."
    ),
    why=(
        "Uncompiled `flex_attention` saves the process-wide FX-tracing flag, clears it and later "
        "restores it, without a lock. If another thread's trace is under way when it saves, and "
        "over when it restores, the flag stays set for good. `torch._dynamo.reset()` does not "
        "clear it."
    ),
    evidence=(
        "The flag was set at the end of the program while no thread compiled or traced, or "
        "several compiled calls found it set while no thread was inside a trace."
    ),
    remedy=Remedy(
        text=(
            "Upgrade to torch 2.14.1 or newer. Below that, call no uncompiled `flex_attention` "
            "while another thread compiles or traces. A process in this state recovers only by "
            "clearing the flag itself or by a restart."
        ),
        snippet="torch.fx._symbolic_trace._is_fx_tracing_flag = False   # with no trace under way",
        seen_to_work="clearing the flag: torch 2.13.0 on CPU",
    ),
    versions="up to 2.13; fixed in 2.14",
    upstream=("pytorch/pytorch#126024",),
    needs=("wrapper", "fx", "invariants"),
    may_follow=("CR401",),
)

SEVERAL = 3
"""A trace may end while a call looks: one call without a tracer proves nothing, several do."""


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """The flag left set."""
    calls = orphans(timeline)
    at_end = set_at_end(timeline)
    number = sum(call.times for call in calls)
    flagged = sum(call.times for call in timeline.flagged)
    if not at_end and not (number >= SEVERAL and 2 * number > flagged):
        return Outcome()
    statements = []
    if at_end and timeline.invariants is not None:
        text = "At the end of the program the FX-tracing flag was set while no thread traced."
        statements.append(Statement(text, "observed", (timeline.invariants.seq,)))
    if calls:
        text = (
            f"{words.count(number, 'recorded call')} of compiled code in "
            f"{words.object_(timeline, (call.tid for call in calls))} found the flag set while no "
            "thread was inside an FX trace."
        )
        statements.append(Statement(text, "observed", words.seqs(call.seq for call in calls)))
    statements.append(_how(timeline, calls))
    tids = [call.tid for call in calls]
    return Outcome(found=[_finding(timeline, calls, tids, tuple(statements))])


def _how(timeline: Timeline, calls: Sequence[FlaggedCall]) -> Statement:
    before = _dense_before(timeline, calls)
    if not before:
        return Statement("Who left it set was not seen.", "unknown")
    tids = dict.fromkeys(dense.tid for dense in timeline.dense if dense.seq in before)
    text = (
        f"{words.begin(words.object_(timeline, tids))} had called `flex_attention` uncompiled "
        "before, which saves and restores the flag without a lock."
    )
    return Statement(text, "inferred", words.seqs(before))


def _dense_before(timeline: Timeline, calls: Sequence[FlaggedCall]) -> frozenset[int]:
    first = min((call.t for call in calls), default=timeline.t1)
    return frozenset(dense.seq for dense in timeline.dense if dense.t <= first)


def _finding(
    timeline: Timeline,
    calls: Sequence[FlaggedCall],
    tids: Sequence[int],
    statements: tuple[Statement, ...],
) -> Found:
    seqs = frozenset(call.seq for call in calls)
    end = {timeline.invariants.seq} if timeline.invariants is not None else set()
    threads = set(tids)
    effect = "every compiled call since then raises or runs eagerly"
    return Found(
        code="CR302",
        statements=statements,
        headline=(
            f"The process-wide FX-tracing flag was left set with no thread tracing; {effect} "
            "(fixed in torch 2.14)."
        ),
        explains=seqs | end | _fx_errors(timeline, threads),
        because=_dense_before(timeline, calls),
        threads=words.refs(timeline, tids),
        stacks=tuple(
            words.stack(timeline, call.tid, "found the flag set", call.where, call.seq)
            for call in calls[:1]
        ),
        shared_state=SharedState(
            name=FLAG,
            writer="a thread that restored a value saved during another's trace",
            reader="compile_wrapper, in every thread",
        ),
    )


def _fx_errors(timeline: Timeline, tids: set[int]) -> frozenset[int]:
    return frozenset(e.seq for e in timeline.errors if e.tid in tids and is_fx_text(e))
