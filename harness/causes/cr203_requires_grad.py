"""CR203: an input's requires_grad or dispatch keys differ from the warm-up's."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR203",
    title="requires-grad-or-dispatch-keys",
    what=(
        "A thread calls the compiled code with a tensor that requires gradients where the "
        "warm-up's did not (or the reverse), or with one that was made in inference mode: it "
        "compiles again there."
    ),
    why=(
        "A tensor's guard includes requires_grad and its set of dispatch keys: which of autograd's "
        "code an operator goes through depends on both. A tensor made under "
        "`torch.inference_mode()` lacks the keys of autograd for good, in whichever thread and "
        "mode it is used later. Where the calling thread itself is in another inference mode than "
        "the warm-up was, that is the cause (CR102)."
    ),
    evidence=(
        "A compile or miss in a thread whose reason is a requires_grad or dispatch key set "
        "mismatch, in the warm-up's inference mode, while another thread called the same code "
        "object in the same period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text=(
            "Warm up with tensors that require gradients just as the real ones do. Make no tensor "
            "in inference mode that compiled training code will get; clone it outside."
        ),
        snippet=(
            "x = torch.randn(shape, requires_grad=True)   # as the real calls have it\n"
            "compiled(x).sum().backward()"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR204", "CR208"),
)

KIND = Input(
    "CR203",
    (Guard.REQUIRES_GRAD, Guard.DISPATCH_KEYS),
    lambda text: (
        "an input's requires_grad or dispatch keys differ from the warm-up's" + guard(text)
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over requires_grad or dispatch keys."""
    return find_input(timeline, KIND)
