"""CR401: flex attention ran dense, outside compiled code."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.diagnosis.report import Remedy, Statement
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
        "limit was hit. The warning that torch prints is shown once per process, and not at all if "
        "it first comes while another thread compiles (torch 2.13 and newer)."
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
    may_follow=("CR301", "CR302", "CR107"),
)

_OUT_OF_MEMORY = "OutOfMemoryError"


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Dense attention outside compiled frames."""
    calls = timeline.dense
    if not calls:
        return Outcome()
    tids = list(dict.fromkeys(call.tid for call in calls))
    number = total(calls)
    largest = max(calls, key=lambda call: call.scores_bytes)
    name = words.object_(timeline, tids)
    statements = [_per_thread(timeline, [c for c in calls if c.tid == tid]) for tid in tids]
    statements += _wrappers(timeline, tids)
    statements += _others(timeline, calls)
    ooms = [
        error
        for error in timeline.errors
        if error.tid in tids and any(_OUT_OF_MEMORY in link.type for link in error.chain)
    ]
    found = Found(
        code="CR401",
        statements=tuple(statements),
        headline=(
            f"{words.begin(name)} ran `flex_attention` dense, outside compiled code, "
            f"{'at least ' if number > len(calls) else ''}{words.times(number)}: "
            f"{_bytes(largest.scores_bytes)} of scores for each call at "
            f"{list(largest.shape)} {largest.dtype.removeprefix('torch.')}."
        ),
        explains=frozenset(call.seq for call in calls).union(error.seq for error in ooms),
        because=_because(timeline, calls),
        threads=words.refs(timeline, tids),
        stacks=(words.stack(timeline, largest.tid, "ran dense", largest.where, largest.seq),),
    )
    return Outcome(found=[found])


def total(calls: Sequence[DenseCall]) -> int:
    """How many dense calls there were, a lower bound: later ones are recorded thinly."""
    most: dict[int, int] = {}
    for call in calls:
        most[call.tid] = max(most.get(call.tid, 0), call.count)
    return sum(most.values())


def _per_thread(timeline: Timeline, calls: Sequence[DenseCall]) -> Statement:
    largest = max(calls, key=lambda call: call.scores_bytes)
    caller = next((f for f in largest.where if f.user), None)
    place = f", from `{caller.function}` at {caller.file}:{caller.line}" if caller else ""
    text = (
        f"`{timeline.name(largest.tid)}` ran dense attention {words.times(total(calls))}, with up "
        f"to {_bytes(largest.scores_bytes)} of scores ({list(largest.shape)} "
        f"{largest.dtype.removeprefix('torch.')}){place}."
    )
    return Statement(text, "observed", words.seqs(call.seq for call in calls))


def _wrappers(timeline: Timeline, tids: Sequence[int]) -> list[Statement]:
    """Torch's own compile around uncompiled flex_attention calls, which is not the program's."""
    compiles = [c for c in timeline.internal_compiles() if c.on in tids]
    if not compiles:
        return []
    text = (
        f"Torch compiled {words.codes(c.code for c in compiles)} for its own use there, which only "
        "an uncompiled `flex_attention` call does."
    )
    return [Statement(text, "observed", words.seqs(*(c.seqs for c in compiles)))]


def _others(timeline: Timeline, calls: Sequence[DenseCall]) -> list[Statement]:
    compiles = [
        compile_
        for call in calls
        for compile_ in timeline.compiling_at(call.t, other_than=call.tid)
        if not compile_.code.internal
    ]
    if not compiles:
        return []
    text = (
        f"Meanwhile {words.names(timeline, (c.tid for c in compiles))} compiled "
        f"{words.codes(c.code for c in compiles)}; torch 2.13 and newer swallow the warning about "
        "dense attention if it first comes during a compile."
    )
    return [Statement(text, "observed", words.seqs(*(c.seqs for c in compiles)))]


def _because(timeline: Timeline, calls: Sequence[DenseCall]) -> frozenset[int]:
    found: set[int] = set()
    for call in calls:
        found.update(
            flagged.seq
            for flagged in timeline.flagged
            if flagged.tid == call.tid and flagged.nested == "eager" and flagged.t <= call.t
        )
        for history in timeline.program_codes():
            if call.tid in history.sightings:
                found.update(
                    seq
                    for c in history.compiles
                    if c.limit_hit and c.t0 <= call.t
                    for seq in c.seqs
                )
    return frozenset(found)


def _bytes(number: int) -> str:
    size = float(number)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
