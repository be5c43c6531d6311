"""CR401: flex attention ran dense, outside compiled code."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.counting import dense_total
from harness.causes.dense_memory import needed
from harness.events.memory import size
from harness.statements import Remedy, Statement
from harness.timeline.eager import before
from harness.timeline.model import DenseCall
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR401",
    title="dense-attention-fallback",
    what=(
        "`flex_attention` ran outside compiled code, in its dense form, which materialises the "
        "whole score matrix: B x H x Q x KV elements, in gigabytes where the fused kernel needs "
        "megabytes. Out-of-memory often comes next."
    ),
    why=(
        "The call was never compiled, or the compiled call ran eagerly: because the FX flag of "
        "another thread was seen with `error_on_nested_fx_trace=False`, or because the recompile "
        "limit was hit, or because of another thread's stance or dispatch mode. The warning that "
        "torch prints is shown once per process, and may be lost altogether (CR405)."
    ),
    evidence="A call of the operator's dense implementation outside a compiled frame.",
    remedy=Remedy(
        text=(
            "Compile `flex_attention` itself, once, and call nothing else in the threads; keep "
            "recompiles below the limit (`recompile_limit=` of `torch.compile`, torch 2.12 and "
            "newer) and leave `error_on_nested_fx_trace` on."
        ),
        snippet=(
            "attention = torch.compile(flex_attention, dynamic=True)\n"
            "out = attention(q, k, v, block_mask=mask, enable_gqa=True)"
        ),
        seen_to_work="torch 2.11.0 on CUDA (1.4 GiB instead of 105 GiB at 8192 tokens)",
    ),
    versions="all",
    upstream=("pytorch/pytorch#134756",),
    needs=("attention",),
    may_follow=("CR301", "CR302", "CR107", "CR312", "CR318", "CR403"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Dense attention outside compiled frames."""
    calls = timeline.dense
    if not calls:
        return Outcome()
    tids = list(dict.fromkeys(call.tid for call in calls))
    number = dense_total(calls)
    largest = max(calls, key=lambda call: call.scores_bytes)
    name = words.object_(timeline, tids)
    by_thread: dict[int, list[DenseCall]] = {tid: [] for tid in tids}
    for call in calls:
        by_thread[call.tid].append(call)
    statements = [_per_thread(timeline, own) for own in by_thread.values()]
    statements += _wrappers(timeline, tids)
    statements += needed(timeline, largest)
    found = Found(
        code="CR401",
        statements=tuple(statements),
        headline=(
            f"{words.begin(name)} ran `flex_attention` dense, outside compiled code, "
            f"{'at least ' if number > len(calls) else ''}{words.times(number)}: "
            f"{size(largest.scores_bytes)} of scores for each call at "
            f"{list(largest.shape)} {largest.dtype.removeprefix('torch.')}."
        ),
        explains=frozenset(call.seq for call in calls),
        because=_because(timeline, calls),
        threads=words.refs(timeline, tids),
        stacks=(words.stack(timeline, largest.tid, "ran dense", largest.where, largest.seq),),
    )
    return Outcome(found=[found])


def _per_thread(timeline: Timeline, calls: Sequence[DenseCall]) -> Statement:
    largest = max(calls, key=lambda call: call.scores_bytes)
    caller = next((f for f in largest.where if f.user), None)
    place = f", from `{caller.function}` at {caller.file}:{caller.line}" if caller else ""
    often = words.times(dense_total(calls))
    text = (
        f"`{timeline.name(largest.tid)}` ran dense attention {often}, with up "
        f"to {size(largest.scores_bytes)} of scores ({list(largest.shape)} "
        f"{largest.dtype.removeprefix('torch.')}){place}."
    )
    return Statement(text, "observed", words.seqs(call.seq for call in calls))


def _wrappers(timeline: Timeline, tids: Sequence[int]) -> list[Statement]:
    """Torch's own compile around uncompiled flex_attention calls, which is not the program's."""
    threads = set(tids)
    compiles = [c for h in timeline.flex_wrappers() for c in h.compiles if c.on in threads]
    if not compiles:
        return []
    text = (
        f"Torch compiled {words.codes(c.code for c in compiles)} for its own use there, which only "
        "an uncompiled `flex_attention` call does."
    )
    return [Statement(text, "observed", words.seqs(*(c.seqs for c in compiles)))]


def _because(timeline: Timeline, calls: Sequence[DenseCall]) -> frozenset[int]:
    last: dict[int, int] = {}
    for call in calls:
        last[call.tid] = max(call.t, last.get(call.tid, call.t))
    found = {
        flagged.seq
        for flagged in timeline.flagged
        if flagged.nested == "eager" and flagged.t <= last.get(flagged.tid, -1)
    }
    for tid, t in last.items():
        found.update(eager.seq for eager in before(timeline.eager, tid, t))
    for history in timeline.program_codes():
        hits = [c for c in history.compiles if c.limit_hit]
        end = (
            max((last[tid] for tid in history.sightings if tid in last), default=-1) if hits else -1
        )
        found.update(seq for c in hits if c.t0 <= end for seq in c.seqs)
    return frozenset(found)
