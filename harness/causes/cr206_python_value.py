"""CR206: a Python value that the compiled code reads is another one than in the warm-up."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR206",
    title="python-value-changed",
    what=(
        "An attribute, a global or an argument that is no tensor (a number, a flag, a string, the "
        "length of a list) has another value than in the warm-up, and a thread compiles again."
    ),
    why=(
        "Dynamo takes Python values for constants and guards on each that the code reads. An "
        "attribute or a global is shared, so one thread that changes it (`model.eval()`, a step "
        "counter, a scale) changes it under all others, whose entries then fit no more."
    ),
    evidence=(
        "A compile or miss in a thread whose reason is a guard on a Python value, while another "
        "thread called the same code object in the same period. A method called for the first time "
        "on an object of its own, such as a second model of one class, is a note."
    ),
    remedy=Remedy(
        text=(
            "Keep what changes in a tensor, or pass it as an argument that the warm-up varied; "
            "leave shared attributes alone while threads call the code. Give each thread that "
            "needs another mode (`train`, `eval`) a model of its own, warmed apart."
        ),
        snippet=(
            "scale = torch.tensor(2.0)              # a tensor's value is not guarded on\n"
            "compiled(x, scale)"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR206",
    (Guard.VALUE,),
    lambda text: "a Python value that it reads differs from the warm-up's" + guard(text),
    beside_cold_start=False,  # which says itself what values of a closure do
    unknown="Who changed the value, and when, is not recorded.",
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a Python value."""
    return find_input(timeline, KIND)
