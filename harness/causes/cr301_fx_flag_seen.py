"""CR301: a compiled call raised because another thread was FX-tracing."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.counting import flagged_total
from harness.causes.fx_flag import (
    FLAG,
    FX_ERROR,
    is_fx_error,
    seen_of_others,
    was_patched,
)
from harness.events.values import Frame
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile, ErrorSeen, FlaggedCall, FxTrace
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR301",
    title="fx-flag-seen-by-another-thread",
    what=(
        f"`RuntimeError: {FX_ERROR}` from `compile_wrapper` in a thread that traces nothing: it "
        "calls compiled code, often on a plain cache hit. With `error_on_nested_fx_trace=False` "
        "there is no error, and the call runs eagerly."
    ),
    why=(
        "Up to torch 2.13 the flag that says `FX is tracing` is one global of the process. While a "
        "thread traces (inside a compile, in `torch.fx.symbolic_trace`, `make_fx` or uncompiled "
        "`flex_attention` with gradients), every compiled call in every thread takes itself for "
        "being traced."
    ),
    evidence=(
        "A call of compiled code that saw the flag set, in a thread that was not tracing, while "
        "another one was. From the error's text and its frame alone it is inferred."
    ),
    remedy=Remedy(
        text=(
            "Upgrade to torch 2.14.1 or newer. Below that, let nothing be traced while other "
            "threads call compiled code: warm up every variant before the threads start, and make "
            "FX traces and compiled calls under one lock. Do not use "
            "`error_on_nested_fx_trace=False`: it runs the call eagerly."
        ),
        snippet=(
            "tracing = threading.RLock()\n"
            "with tracing:                          # around every trace, and every compiled call\n"
            "    traced = torch.fx.symbolic_trace(module)"
        ),
        seen_to_work="one lock around all calls: torch 2.11.0, 2.13.0 and 2.15.0 on CPU",
    ),
    versions=(
        "2.9 to 2.12 on a cache hit while another thread compiles; 2.13 only while another thread "
        "traces outside a dynamo compile; fixed in 2.14"
    ),
    upstream=("pytorch/pytorch#126024", "pytorch/pytorch#187589"),
    needs=("wrapper", "fx"),
    may_follow=("CR1", "CR2", "CR303", "CR401"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Calls that saw the FX flag of another thread."""
    seen = seen_of_others(timeline)
    errors = [error for error in timeline.errors if is_fx_error(error)]
    if seen:
        tids = {call.tid for call in seen}
        errors += [e for e in timeline.errors if e.tid in tids and was_patched(e)]
        return Outcome(found=[_finding(timeline, seen, errors)])
    flagged = {call.tid for call in timeline.flagged}
    unseen = [error for error in errors if error.tid not in flagged]
    return Outcome(found=[_from_text(timeline, unseen)] if unseen else [])


def _trace_of(timeline: Timeline, call: FlaggedCall) -> FxTrace | None:
    traces = timeline.tracing_at(call.t, other_than=call.tid)
    return next((trace for trace in traces if trace.tid in call.tracing or not call.tracing), None)


def _compile_of(timeline: Timeline, call: FlaggedCall) -> Compile | None:
    """The dynamo compile that the trace belonged to."""
    compiles = timeline.compiling_at(call.t, other_than=call.tid)
    own = [c for c in compiles if c.on in call.tracing or not call.tracing]
    return own[-1] if own else None


def _because(timeline: Timeline, calls: Sequence[FlaggedCall]) -> frozenset[int]:
    found: set[int] = set()
    tracing = {tid for call in calls for tid in call.tracing}
    # Uncompiled flex_attention with gradients traces: its dense calls explain the trace.
    found.update(dense.seq for dense in timeline.dense if dense.tid in tracing)
    for call in calls:
        compile_, trace = _compile_of(timeline, call), _trace_of(timeline, call)
        if compile_ is not None:
            found.update(compile_.seqs)
        if trace is not None:
            found.update(trace.seqs)
    return frozenset(found)


def _finding(
    timeline: Timeline, calls: Sequence[FlaggedCall], errors: Sequence[ErrorSeen]
) -> Found:
    first = next((call for call in calls if call.nested == "raise"), calls[0])
    tids = list(dict.fromkeys(call.tid for call in calls))
    tracers = list(dict.fromkeys(tid for call in calls for tid in _tracers(timeline, call)))
    compile_, trace = _compile_of(timeline, first), _trace_of(timeline, first)
    doing = _doing(compile_, trace)
    eager = all(call.nested == "eager" for call in calls)
    effect = "ran eagerly" if eager else "raised the FX error"
    code = f" `{first.code.name}`" if first.code else ""
    number = words.count(flagged_total(calls), "call")
    frames, seq = _where(compile_, trace)
    codes = dict.fromkeys(call.code.id for call in calls if call.code)
    histories = [timeline.codes[number] for number in codes if number in timeline.codes]
    return Found(
        code="CR301",
        statements=(
            Statement(
                f"`{timeline.name(first.tid)}` called{code} and found the FX-tracing flag set "
                f"while it traced nothing and {words.names(timeline, tracers)} {doing}; the call "
                f"{effect}.",
                "observed" if first.tracing else "inferred",
                words.seqs((first.seq,), (seq,) if seq else ()),
            ),
            Statement(
                f"That happened to {number} in {words.object_(timeline, tids)}.",
                "observed",
                words.seqs(call.seq for call in calls),
            ),
            *_ended(timeline, errors),
        ),
        headline=(
            f"{words.subject(timeline, tids, histories)} {effect} in compiled code because "
            f"{words.names(timeline, tracers)} {doing}: up to torch 2.13 the FX-tracing flag is "
            "one for the process (fixed in 2.14)."
        ),
        explains=frozenset(call.seq for call in calls).union(error.seq for error in errors),
        because=_because(timeline, calls),
        threads=words.refs(timeline, [*tids, *tracers]),
        stacks=(
            words.stack(timeline, first.tid, "called compiled code", first.where, first.seq),
            *(words.stack(timeline, tid, "was tracing", frames, seq) for tid in tracers[:1]),
        ),
        shared_state=SharedState(
            name=FLAG,
            writer=f"{words.names(timeline, tracers)}, tracing",
            reader=f"{words.names(timeline, tids)}, in compile_wrapper",
        ),
    )


def _tracers(timeline: Timeline, call: FlaggedCall) -> list[int]:
    if call.tracing:
        return list(call.tracing)
    return [trace.tid for trace in timeline.tracing_at(call.t, other_than=call.tid)]


def _doing(compile_: Compile | None, trace: FxTrace | None) -> str:
    if compile_ is not None:
        return f"compiled `{compile_.code.name}`"
    tracer = f" ({trace.tracer})" if trace is not None and trace.tracer else ""
    return f"made an FX trace{tracer} outside a compile"


def _where(compile_: Compile | None, trace: FxTrace | None) -> tuple[tuple[Frame, ...], int]:
    if compile_ is not None:
        return compile_.where, compile_.seqs[0]
    return (trace.where, trace.seqs[0]) if trace is not None else ((), 0)


def _ended(timeline: Timeline, errors: Sequence[ErrorSeen]) -> list[Statement]:
    found = []
    for error in errors:
        call = "A future's call in " if error.via == "future" else ""
        what = "that error"
        if not is_fx_error(error):
            what = (
                f"`{error.error.type}`: its module calls went into the other thread's tracer, "
                "which patches `nn.Module` for the whole process"
            )
        text = f"{call}`{timeline.name(error.tid)}` ended with {what}."
        found.append(Statement(text, "observed", (error.seq,)))
    return found


def _from_text(timeline: Timeline, errors: Sequence[ErrorSeen]) -> Found:
    """The finding from the error's own text: who traced was not seen."""
    tids = list(dict.fromkeys(error.tid for error in errors))
    name = timeline.header.data.torch if timeline.header else ""
    compiles = {
        id(c): c for e in errors for c in timeline.compiling_at(e.t, other_than=e.tid)
    }.values()
    meanwhile = (
        f"{words.names(timeline, (c.tid for c in compiles))} compiled meanwhile"
        if compiles
        else "who traced meanwhile was not seen"
    )
    return Found(
        code="CR301",
        statements=(
            Statement(
                f"{words.begin(words.object_(timeline, tids))} ended with the FX error, raised in "
                "`compile_wrapper`.",
                "observed",
                words.seqs(error.seq for error in errors),
            ),
            Statement(
                f"Another thread's trace set the flag: {meanwhile}. torch {name or 'unknown'}.",
                "inferred",
                words.seqs(*(c.seqs for c in compiles)),
            ),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} raised the FX error in compiled code: another "
            "thread was tracing, and up to torch 2.13 the FX-tracing flag is one for the process "
            "(fixed in 2.14)."
        ),
        explains=frozenset(error.seq for error in errors),
        because=frozenset(seq for c in compiles for seq in c.seqs),
        threads=words.refs(timeline, tids),
    )
