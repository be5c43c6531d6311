"""CR204: a call on a device that the warm-up did not run on."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.uncovered_inputs import Input, find_input, guard
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR204",
    title="device-not-warmed",
    what=(
        "The warm-up ran on one GPU and a thread calls the compiled code with tensors of another: "
        "it compiles again there."
    ),
    why=(
        "A tensor's guard includes its device index, and generated kernels are loaded for one "
        "device. One `torch.compile` call for each device does not help by itself: entries belong "
        "to the code object, and each device still needs one."
    ),
    evidence=(
        "A compile or miss in a thread whose reason is a device index mismatch, while another "
        "thread called the same code object in the same period. Otherwise it is a note."
    ),
    remedy=Remedy(
        text="Warm up on every device that a thread will use, forward and backward.",
        snippet=(
            "for device in devices:\n"
            "    with torch.cuda.device(device):\n"
            "        for length in (512, 768):\n"
            "            compiled(batch(length, device)).float().sum().backward()"
        ),
        seen_to_work="torch 2.11.0 on CUDA, two GPUs (10 of 10 runs)",
    ),
    versions="all",
    needs=("compiles", "guards"),
    may_follow=("CR1", "CR208"),
)

KIND = Input(
    "CR204",
    (Guard.DEVICE,),
    lambda text: "it was not warmed on that device" + guard(text),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - same for all
    """Calls that missed over a device."""
    return find_input(timeline, KIND)
