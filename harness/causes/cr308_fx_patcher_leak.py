"""CR308: two FX traces overlapped, and ``torch.nn.Module`` stayed patched."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.events.values import ErrorLink
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import ErrorSeen, FxTrace
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR308",
    title="fx-patcher-leak",
    what=(
        "A thread dies of an `AssertionError` about `CURRENT_PATCHER` at the end of its FX trace, "
        "and `torch.nn.Module.__call__` stays patched: every module call of the process goes "
        "through a tracer that is long gone."
    ),
    why=(
        "Each FX trace patches `torch.nn.Module.__call__` and `__getattr__` and notes its patches "
        "in `torch.fx._symbolic_trace.CURRENT_PATCHER`, a global without a lock. Of two traces "
        "that overlap in two threads, the first to end takes back the other's patches, and the "
        "last to end finds none: the first one's are never taken back."
    ),
    evidence=(
        "That error, raised in `_new_patcher`, or, at the end of the program with no thread "
        "tracing, `torch.nn.Module` patched or `CURRENT_PATCHER` set."
    ),
    remedy=Remedy(
        text=(
            "Let one thread at a time trace: put `make_fx`, `torch.fx.symbolic_trace`, "
            "uncompiled `flex_attention` with gradients and whatever may compile under one lock. "
            "A process in this state recovers by a restart."
        ),
        snippet=(
            "tracing = threading.RLock()\n"
            "with tracing:                          # in every thread\n"
            "    graph = torch.fx.symbolic_trace(module)"
        ),
        seen_to_work="one lock around the traces: torch 2.13.0 on CPU",
    ),
    versions="2.11 to 2.15 (not fixed)",
    upstream=("pytorch/pytorch#189884", "pytorch/pytorch#187589"),
    needs=("fx", "threads", "invariants"),
    may_follow=("CR1", "CR2", "CR303", "CR401"),
)

STATE = "torch.fx._symbolic_trace.CURRENT_PATCHER"


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Patches left, or taken back by the wrong trace."""
    errors = [e for e in timeline.errors if any(map(is_patcher_error, e.chain))]
    left = _left_at_end(timeline)
    return Outcome(found=[_finding(timeline, errors, left)] if errors or left else [])


def is_patcher_error(link: ErrorLink) -> bool:
    """Whether an exception is a trace's that found its patcher gone."""
    return (
        link.type == "AssertionError"
        and bool(link.frames)
        and link.frames[-1].function == "_new_patcher"
        and link.frames[-1].file.replace("\\", "/").endswith("torch/fx/_symbolic_trace.py")
    )


def _left_at_end(timeline: Timeline) -> list[str]:
    """What of the patches was there at the end, with nobody tracing."""
    event = timeline.invariants
    if event is None or event.data.busy_tids:
        return []
    names = {
        "`torch.nn.Module.__call__` or `__getattr__` was patched": event.data.module_call_original,
        "`CURRENT_PATCHER` was set": event.data.patcher_clear,
    }
    return [name for name, right in names.items() if right is False]


def crossing(timeline: Timeline) -> list[tuple[FxTrace, FxTrace]]:
    """Pairs of traces of two threads of which the first to begin was the first to end."""
    traces = sorted((t for t in timeline.fx_traces if t.t1 is not None), key=lambda t: t.t0)
    pairs: list[tuple[FxTrace, FxTrace]] = []
    open_: list[FxTrace] = []
    for trace in traces:
        open_ = [other for other in open_ if other.t1 is not None and other.t1 > trace.t0]
        pairs += [
            (other, trace)
            for other in open_
            if other.tid != trace.tid and (other.t1 or 0) < (trace.t1 or 0)
        ]
        open_.append(trace)
    return pairs


def _finding(timeline: Timeline, errors: Sequence[ErrorSeen], left: Sequence[str]) -> Found:
    pairs = crossing(timeline)[:1]
    traces = [trace for pair in pairs for trace in pair]
    end = timeline.invariants
    tids = list(dict.fromkeys([*(e.tid for e in errors), *(t.tid for t in traces)]))
    statements: list[Statement] = []
    if errors:
        text = (
            f"{words.begin(words.object_(timeline, (e.tid for e in errors)))} failed at the end of "
            "an FX trace, whose patches another trace had taken back."
        )
        statements.append(Statement(text, "observed", words.seqs(e.seq for e in errors)))
    if left and end is not None:
        text = f"At the end of the program {words.listing(left)} while no thread traced."
        statements.append(Statement(text, "observed", (end.seq,)))
    statements.append(_who(timeline, traces))
    stacks = [words.stack(timeline, t.tid, "traced", t.where, t.seqs[0]) for t in traces]
    effect = (
        "and `torch.nn.Module` stayed patched" if left else "and one took back another's patches"
    )
    who = f" in {words.object_(timeline, tids)}" if tids else ""
    return Found(
        code="CR308",
        statements=tuple(statements),
        headline=(
            f"FX traces{who} overlapped, {effect}: what a trace patches is kept in one global for "
            "the process (torch 2.11 to 2.15)."
        ),
        explains=frozenset(e.seq for e in errors),
        because=frozenset(seq for trace in traces for seq in trace.seqs),
        threads=words.refs(timeline, tids),
        stacks=tuple(stacks),
        shared_state=SharedState(
            name=STATE, writer="each FX trace, at both its ends", reader="each other trace"
        ),
    )


def _who(timeline: Timeline, traces: Sequence[FxTrace]) -> Statement:
    if not traces:
        return Statement("Which traces overlapped was not seen.", "unknown")
    first, last = traces
    text = (
        f"`{timeline.name(last.tid)}` began an FX trace within one of "
        f"`{timeline.name(first.tid)}` and ended it later, so each put back what the other had "
        "patched."
    )
    return Statement(text, "inferred", words.seqs(first.seqs, last.seqs))
