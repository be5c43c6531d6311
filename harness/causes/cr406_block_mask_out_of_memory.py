"""CR406: building a block mask ran out of memory, because all of the mask is made first."""

import math
from collections.abc import Sequence

from harness.causes import out_of_memory, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.out_of_memory import Failure
from harness.events.memory import size
from harness.statements import Note, Remedy, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR406",
    title="dense-block-mask-out-of-memory",
    what=(
        "`create_block_mask` runs out of memory at a length at which compiled `flex_attention` "
        "itself would not."
    ),
    why=(
        "Uncompiled, `create_block_mask` makes the mask of every query and key first, B x H x Q x "
        "KV booleans, and on a CPU sums them over the blocks as 64-bit integers: ten bytes an "
        "element at the peak. Compiled, that is one fused kernel, and only the blocks are kept."
    ),
    evidence=(
        "A request that failed below a frame of `create_block_mask` or `create_mask`. One that the "
        "program handled is a note."
    ),
    remedy=Remedy(
        text=(
            "Compile it once, before the threads start, and build masks with that. Leave out heads "
            "and batch (`None`) where the mask does not depend on them, and build a mask once for "
            "all layers."
        ),
        snippet=(
            "make_mask = torch.compile(create_block_mask)\n"
            "mask = make_mask(mask_mod, None, None, q_len, kv_len, device=device)"
        ),
        seen_to_work="torch 2.13.0 on CPU (65,536 tokens under a bound of 2 GiB)",
    ),
    versions="all (ten bytes an element: measured on 2.11.0, 2.13.0 and 2.14.1, CPU)",
    upstream=("pytorch/pytorch#134756",),
    needs=("threads",),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - by frame alone
    """Failed requests that were made for a block mask."""
    outcome = Outcome()
    found = [f for f in out_of_memory.failures(timeline) if f.data.doing == "block_mask"]
    for failure in (f for f in found if f.survived(timeline)):
        text = (
            f"Building a block mask, `{timeline.name(failure.tid)}` "
            f"{out_of_memory.in_words(failure)}: it failed, and the program went on."
        )
        outcome.notes.append(
            Note(text=text, code="CR406", pid=timeline.pid, evidence=words.seqs(failure.seqs))
        )
    fatal = [f for f in found if not f.survived(timeline)]
    if fatal:
        outcome.found.append(_finding(timeline, fatal))
    return outcome


def _finding(timeline: Timeline, found: Sequence[Failure]) -> Found:
    tids = list(dict.fromkeys(failure.tid for failure in found))
    first = found[0]
    statements = []
    for failure in found:
        statements.append(out_of_memory.statement(timeline, failure))
        statements += _sizes(failure)
    return Found(
        code="CR406",
        statements=tuple(statements),
        headline=(
            f"{words.begin(words.object_(timeline, tids))} ran out of memory building a block "
            f"mask outside compiled code, which makes all of the mask first: it "
            f"{out_of_memory.in_words(first)}."
        ),
        explains=out_of_memory.seqs(found),
        threads=words.refs(timeline, tids),
        stacks=out_of_memory.stacks(timeline, found),
    )


def _sizes(failure: Failure) -> list[Statement]:
    sizes = failure.data.sizes
    if not sizes:
        return []
    elements = math.prod(sizes)
    text = (
        f"The whole mask of B, H, Q, KV = {', '.join(map(str, sizes))} has {elements:,} elements: "
        f"{size(elements)} as booleans, {size(8 * elements)} while they are summed as "
        "64-bit integers."
    )
    return [Statement(text, "inferred", words.seqs(failure.seqs))]
