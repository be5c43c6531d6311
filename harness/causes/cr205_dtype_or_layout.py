"""CR205: an input's dtype, strides or memory layout differ from the warm-up's."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR205",
    title="dtype-stride-or-layout",
    what=(
        "A thread calls the compiled code with a tensor of another dtype, or of other strides "
        "(transposed, sliced, channels-last), than the warm-up's: it compiles again there."
    ),
    why=(
        "A tensor's guard includes its dtype and its strides. Sizes become symbolic after a "
        "second one was seen, and contiguous strides with them; a dtype never does, and an order "
        "of strides that was not seen does not fit either."
    ),
    evidence=(
        "A compile or miss in a thread whose reason is a dtype or stride mismatch, while another "
        "thread called the same code object in the same period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text=(
            "Warm up with tensors of the real dtype and layout, or give every call the same one "
            "(`.contiguous()`, `.to(dtype)`) before it enters compiled code."
        ),
        snippet="compiled(x.to(torch.bfloat16).contiguous())   # in the warm-up and in the threads",
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR205",
    (Guard.LAYOUT,),
    lambda text: "an input's dtype, strides or layout differ from the warm-up's" + guard(text),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a dtype or a layout."""
    return find_input(timeline, KIND)
