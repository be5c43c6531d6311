"""CR202: a tensor that the function captured (a mask's closure) differs from the warm-up's."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR202",
    title="captured-tensor",
    what=(
        "A `mask_mod` or `score_mod` closes over a tensor whose size changes from step to step, "
        "such as one element for each anchor. The compiled attention is compiled again when it "
        "changes, in whatever thread that happens."
    ),
    why=(
        "Dynamo guards on what a captured function closes over, tensor by tensor: "
        "`block_mask.mask_mod.__closure__[1].cell_contents`. Warming up at two sequence lengths "
        "does not vary it when the number of anchors stays the same there."
    ),
    evidence=(
        "A compile or miss in a thread whose reason names a closure's contents, while another "
        "thread called the same code object in the same period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text=(
            "Give captured tensors a fixed size (pad, and mask the padding), or vary their size in "
            "the warm-up as the training does."
        ),
        snippet=(
            "anchors = torch.full((max_anchors,), -1)      # a fixed count, with a keep mask\n"
            "anchors[:n] = chosen\n"
            "keep = torch.arange(max_anchors) < n"
        ),
        seen_to_work="torch 2.11.0 on CUDA (fixed anchor count, 10 of 10 runs), "
        "torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR202",
    (Guard.CAPTURED,),
    lambda text: "a tensor that it captures differs from the warm-up's" + guard(text),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a captured tensor."""
    return find_input(timeline, KIND)
