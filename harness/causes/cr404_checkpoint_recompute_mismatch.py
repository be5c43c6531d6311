"""CR404: activation checkpointing recomputed along another path than its forward had taken."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.errors import distinct
from harness.events.values import Frame
from harness.phrases import quoted
from harness.statements import Remedy, Statement
from harness.timeline.judging import seqs_of
from harness.timeline.model import DenseCall, EagerCall, ErrorSeen, FlaggedCall, Uncovered
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR404",
    title="checkpoint-recompute-mismatch",
    what=(
        "Backward fails with `CheckpointError`: the recomputation saved other tensors, or another "
        "number of them, than the forward. The program's own function did not change between."
    ),
    why=(
        "A compiled region saves what its compiled backward needs, an eager one what each operator "
        "needs. So a forward that ran compiled and a recomputation that ran eager (or the reverse, "
        "or another variant) do not match. Between the two another thread can hit the recompile "
        "limit, set a stance or trace with FX; or the recomputation runs on autograd's thread, "
        "which has a context and, since torch 2.12, settings of its own."
    ),
    evidence=(
        "A `CheckpointError` in a thread whose recomputation ran eager or dense, or found no entry "
        "that fitted; or that thread's calls ran eager because of another thread. Without either "
        "the program's own function is at fault, which is no finding of this kind."
    ),
    remedy=Remedy(
        text=(
            "Remove what made the call run eager or recompile (the findings before this one): "
            "warm up forward and backward, keep recompiles below the limit, change no stance while "
            "a backward is due. Or compile around the checkpoint instead of inside it."
        ),
        snippet=(
            "def block(x):\n"
            "    return checkpoint(layer, x, use_reentrant=False)\n"
            "compiled = torch.compile(block)        # not checkpoint(torch.compile(layer), x)"
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#144035",),
    needs=("threads", "guards", "eager"),
    may_follow=("CR1", "CR2", "CR301", "CR302", "CR312", "CR318", "CR401", "CR403"),
)

_ERROR = "torch.utils.checkpoint.CheckpointError"
_FILE = "torch/utils/checkpoint.py"
_RECOMPUTING = frozenset({"recompute_fn", "unpack_hook"})
# Routes that are the function's own nature: it runs like that every time, so nothing differs.
_CONSTANT = frozenset({"no_graph", "unsupported", "unknown"})

_Seen = EagerCall | DenseCall | FlaggedCall | Uncovered


@dataclass(frozen=True)
class _Case:
    """An error and what shows that a recomputation took another path; ``inside``: it itself."""

    error: ErrorSeen
    inside: tuple[_Seen, ...]
    foreign: tuple[_Seen, ...]

    @property
    def seen(self) -> tuple[_Seen, ...]:
        return (*self.inside, *self.foreign)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Checkpoint errors in threads whose recomputation took another path."""
    errors = [e for e in timeline.errors if any(link.type == _ERROR for link in e.chain)]
    cases = [case for error in distinct(errors) if (case := _case(timeline, error)).seen]
    return Outcome(found=[_finding(timeline, cases)] if cases else [])


def _case(timeline: Timeline, error: ErrorSeen) -> _Case:
    # On a GPU the recomputation runs on autograd's thread, the error ends the one that called it.
    tids = {error.tid}
    tids |= {t for t in timeline.autograd if error.tid in timeline.callers_of(t)}
    seen = [call for call in _paths(timeline) if call.tid in tids and call.t <= error.t]
    inside = tuple(call for call in seen if _is_recomputing(call.where))
    foreign = tuple(
        call for call in seen if isinstance(call, EagerCall) and call.by not in {None, *tids}
    )
    return _Case(error, inside, tuple(call for call in foreign if call not in inside))


def _paths(timeline: Timeline) -> Iterable[_Seen]:
    yield from (call for call in timeline.eager if call.route not in _CONSTANT)
    yield from timeline.dense
    yield from (call for call in timeline.flagged if call.nested == "eager")
    for history in timeline.program_codes():
        yield from (call for call in history.uncovered if not call.no_entry)


def _is_recomputing(where: Iterable[Frame]) -> bool:
    return any(
        frame.function in _RECOMPUTING and frame.file.replace("\\", "/").endswith(_FILE)
        for frame in where
    )


def _seqs(call: _Seen) -> tuple[int, ...]:
    if isinstance(call, Uncovered):
        return tuple(sorted(seqs_of(call)))
    return (call.seq,)


def _finding(timeline: Timeline, cases: Sequence[_Case]) -> Found:
    tids = list(dict.fromkeys(case.error.tid for case in cases))
    shown = frozenset().union(*(case.error.ids for case in cases))
    seqs = frozenset(seq for case in cases for call in case.seen for seq in _seqs(call))
    first = cases[0]
    frames = next(link.frames for link in first.error.chain if link.type == _ERROR)
    call = first.seen[0]
    return Found(
        code="CR404",
        statements=tuple(s for case in cases for s in _statements(timeline, case)),
        headline=(
            f"{words.subject(timeline, tids, [])} failed with `CheckpointError`: the "
            f"recomputation {_path(first)}, so it saved other tensors than the forward."
        ),
        explains=frozenset(e.seq for e in timeline.errors if e.ids & shown),
        because=seqs | _limits(timeline, cases),
        threads=words.refs(timeline, tids),
        stacks=(
            words.stack(
                timeline,
                first.error.tid,
                "compared what was saved",
                tuple(reversed(frames)),
                first.error.seq,
            ),
            words.stack(timeline, call.tid, _did(call), call.where, _seqs(call)[0]),
        ),
    )


def _path(case: _Case) -> str:
    if not case.inside:
        return "or its forward ran eager for another thread's sake"
    return _did(case.inside[-1])


def _did(call: _Seen) -> str:
    match call:
        case DenseCall():
            return "ran dense attention"
        case Uncovered() if call.compile is not None:
            return "found no entry that fitted and compiled another variant"
        case Uncovered():
            return "found no entry that fitted"
        case _:
            return "ran eager"


def _statements(timeline: Timeline, case: _Case) -> Iterable[Statement]:
    error = case.error
    message = next(link.message for link in error.chain if link.type == _ERROR)
    said = message.strip().splitlines()[0][:160]
    text = f"`{timeline.name(error.tid)}` raised `CheckpointError`: {quoted(said)}"
    yield Statement(text, "observed", (error.seq,))
    if case.inside:
        call = case.inside[-1]
        name = "dense attention" if isinstance(call, DenseCall) else _name(call)
        where = _where(timeline, error, call)
        text = f"Inside a recomputation {where} {name} {_did(call)}{_why(timeline, call)}."
        yield Statement(text, "observed", words.seqs(*map(_seqs, case.inside)))
    yield from _for_whom(timeline, case)
    if case.foreign:
        call = case.foreign[-1]
        where = words.begin(_where(timeline, error, call))
        text = f"{where} {_name(call)} {_did(call)}{_why(timeline, call)}."
        yield Statement(text, "observed", words.seqs(*map(_seqs, case.foreign)))
    yield Statement(
        "So forward and recomputation took different paths and saved different tensors.",
        "inferred",
        words.seqs((error.seq,), *map(_seqs, case.seen[-1:])),
    )


def _for_whom(timeline: Timeline, case: _Case) -> Iterable[Statement]:
    """That autograd's thread may have recomputed for another caller than the one that failed."""
    for tid in dict.fromkeys(call.tid for call in case.inside if call.tid != case.error.tid):
        callers = timeline.callers_of(tid)
        if len(callers) > 1:
            text = (
                f"`{timeline.name(tid)}` runs the backward of {words.names(timeline, callers)}: "
                "for which of them it recomputed then is not known."
            )
            seqs = words.seqs(*(_seqs(call) for call in case.inside if call.tid == tid))
            yield Statement(text, "unknown", seqs)


def _where(timeline: Timeline, error: ErrorSeen, call: _Seen) -> str:
    """The thread of a call: the one that the error ended, or autograd's that worked for it."""
    return "in that thread" if call.tid == error.tid else f"in `{timeline.name(call.tid)}`"


def _name(call: _Seen) -> str:
    code = None if isinstance(call, DenseCall) else call.code
    return f"`{code.name}`" if code is not None else "compiled code"


def _why(timeline: Timeline, call: _Seen) -> str:
    if not isinstance(call, EagerCall):
        return ""
    by = ""
    if call.by is not None and call.by != call.tid:
        by = f", `{timeline.name(call.by)}`'s doing"
    return f" ({call.route.replace('_', ' ')}{by})"


def _limits(timeline: Timeline, cases: Sequence[_Case]) -> frozenset[int]:
    """Where the limit was hit for which a recomputation ran eager."""
    codes = {
        call.code.id
        for case in cases
        for call in case.seen
        if isinstance(call, EagerCall | Uncovered)
    }
    hits = (
        c for h in timeline.program_codes() if h.code.id in codes for c in h.compiles if c.limit_hit
    )
    return frozenset(seq for hit in hits for seq in hit.seqs)
