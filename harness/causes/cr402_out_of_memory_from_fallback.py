"""CR402: dense attention outside compiled code ran out of memory."""

import math
from collections.abc import Sequence

from harness.causes import out_of_memory, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.dense_memory import Need, need_of, needed
from harness.causes.out_of_memory import Failure
from harness.events.memory import size
from harness.statements import Remedy, Statement
from harness.timeline.model import DenseCall
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR402",
    title="out-of-memory-from-a-fallback",
    what=(
        "`torch.OutOfMemoryError`, or `DefaultCPUAllocator: can't allocate memory` on a CPU, in a "
        "`flex_attention` call that should have been compiled and ran dense instead."
    ),
    why=(
        "The fused kernel never holds the score matrix. The dense one holds B x H x Q x KV "
        "elements, three times in float32 for the forward and six times for a backward, so memory "
        "grows with the square of the length. More memory only moves the length at which it ends."
    ),
    evidence=(
        "A request that failed while a frame of the dense kernel, outside compiled code, asked for "
        "it. Where no frame tells, a request of the size of the scores, in a thread that had just "
        "attended densely: that is inferred."
    ),
    remedy=Remedy(
        text=(
            "Remove what made attention run dense, which the finding that this one follows from "
            "names; do not make the batch smaller. Compiled, the same call fits."
        ),
        snippet=(
            "attention = torch.compile(flex_attention, dynamic=True)\n"
            "out = attention(q, k, v, block_mask=mask, enable_gqa=True)"
        ),
        seen_to_work=(
            "torch 2.11.0 on CUDA (1.4 GiB instead of 105 GiB at 8192 tokens); torch 2.13.0 on CPU"
        ),
    ),
    versions="all (copies of the scores: counted on 2.11.0, 2.13.0 and 2.14.1)",
    upstream=("pytorch/pytorch#134756",),
    needs=("attention",),
    may_follow=("CR401",),
)


_Claim = tuple[Failure, list[DenseCall], bool]
"""A failed request, the dense calls that it may have been for, and whether its frame says so."""


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Failed requests that dense attention made."""
    claimed: list[_Claim] = []
    for failure in out_of_memory.failures(timeline):
        calls, by_frame = out_of_memory.dense_calls(timeline, failure)
        if by_frame or calls:
            claimed.append((failure, calls, by_frame))
    if not claimed:
        return Outcome()
    found = [failure for failure, _, _ in claimed]
    tids = list(dict.fromkeys(failure.tid for failure in found))
    first = claimed[0][0]
    own = first.data.sizes or ()
    at = f" at B, H, Q, KV = {', '.join(map(str, own))}" if own else ""
    return Outcome(
        found=[
            Found(
                code="CR402",
                statements=tuple(_statements(timeline, claimed)),
                headline=(
                    f"Dense attention in {words.object_(timeline, tids)} ran out of memory{at}: it "
                    f"{out_of_memory.in_words(first)}."
                ),
                explains=out_of_memory.seqs(found),
                because=frozenset(call.seq for _, calls, _ in claimed for call in calls),
                threads=words.refs(timeline, tids),
                stacks=out_of_memory.stacks(timeline, found),
            )
        ]
    )


def _statements(timeline: Timeline, claimed: Sequence[_Claim]) -> list[Statement]:
    statements = []
    for failure, calls, by_frame in claimed:
        statements.append(out_of_memory.statement(timeline, failure))
        statements.append(_for_what(timeline, failure, calls, by_frame=by_frame))
    known = [call for _, calls, _ in claimed for call in calls]
    if known:
        statements += needed(timeline, max(known, key=lambda call: call.scores_bytes))
    return statements


def _for_what(
    timeline: Timeline, failure: Failure, calls: Sequence[DenseCall], *, by_frame: bool
) -> Statement:
    data = failure.data
    seqs = words.seqs(failure.seqs, (call.seq for call in calls))
    if by_frame:
        part = "backward" if data.doing == "dense_backward" else "forward"
        # The frame's own sizes: which of the recorded calls it was is no more than likely.
        own = need_of(math.prod(data.sizes) * data.element_size, data.dtype)
        sizes = _sizes(own) if data.sizes and data.element_size else ""
        text = f"The request was made inside the dense {part}, outside compiled code{sizes}."
        # Names in a traceback alone do not tell a compiled graph's kernel from a fallback's.
        return Statement(text, "observed" if failure.request else "inferred", seqs)
    sizes = "".join(_sizes(need_of(call.scores_bytes, call.dtype)) for call in calls[:1])
    who = words.names(timeline, (call.tid for call in calls), "or")
    text = f"A request of that size is one for the scores of the dense call that {who} had made"
    if len(calls) > 1:  # autograd's thread works for all of them
        return Statement(f"{text}; for which of them is not known.", "inferred", seqs)
    text += f"{sizes}."
    return Statement(text, "inferred", seqs)


def _sizes(need: Need) -> str:
    return (
        f"; its scores have B x H x Q x KV = {need.elements:,} elements, "
        f"{size(need.elements * need.working_size)} in the type that it computes in"
    )
