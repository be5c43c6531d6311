"""CR209: a tensor's dimensions are marked dynamic or static otherwise than in the warm-up."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR209",
    title="dynamic-marking-differs",
    what=(
        "The warm-up's tensors were not marked by `torch._dynamo.mark_dynamic` (or `maybe_mark_"
        "dynamic`, `mark_static`, `mark_unbacked`) and a thread's are, or other dimensions of "
        "them: it compiles again there."
    ),
    why=(
        "A mark is an attribute of the tensor, and dynamo guards on it: an entry made for tensors "
        "without marks takes none with. The reverse fits, since an entry for marked dimensions is "
        "the more general one."
    ),
    evidence=(
        "A compile or miss in a thread whose reason names the mark (`_has_dynamo_dim_marking`, "
        "`_dynamo_dynamic_indices`), while another thread called the same code object in the same "
        "period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text="Mark the warm-up's tensors as the real ones are marked, or none of them.",
        snippet=("torch._dynamo.mark_dynamic(x, 0)       # in the warm-up too\ncompiled(x)"),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all (the guard's words changed in 2.13)",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR209",
    (Guard.DYNAMIC_MARKING,),
    lambda text: "its tensors' dimensions are not marked as in the warm-up" + guard(text),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a mark."""
    return find_input(timeline, KIND)
