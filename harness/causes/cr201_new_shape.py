"""CR201: a shape that the warm-up did not cover, while several threads call the code."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR201",
    title="new-shape",
    what=(
        "The warm-up ran at sizes that the training calls do not have, so the first call of "
        "another length compiles again, in a thread, while other threads use the same code."
    ),
    why=(
        "With automatic dynamic shapes the first compile is for exactly the sizes it saw; only a "
        "second size makes them symbolic, and that costs a recompile. A warm-up at one length "
        "leaves that recompile to the threads. With `dynamic=False` every new size is one."
    ),
    evidence=(
        "A compile or miss in a thread whose reason is a size mismatch, while another thread "
        "called the same code object in the same period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text=(
            "Warm up at two lengths, forward and backward, so that the sizes become symbolic; or "
            "compile with `dynamic=True` and still warm up at two."
        ),
        snippet=(
            "attention = torch.compile(flex_attention, dynamic=True)\n"
            "for length in (512, 768):\n"
            "    attention(*inputs(length)).float().sum().backward()"
        ),
        seen_to_work="torch 2.11.0 on CUDA (6 of 6 runs with two lengths), torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR201",
    (Guard.SIZE,),
    lambda text: "no entry of the warm-up covers a new shape" + guard(text),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a shape."""
    return find_input(timeline, KIND)
