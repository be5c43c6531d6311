"""CR102: warmed in inference mode, called outside of it in other threads, or the reverse."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR102",
    title="inference-mode",
    what=(
        "Compiled code was warmed up under `torch.inference_mode()` and is called outside of it by "
        "worker threads (or the reverse), which all compile again."
    ),
    why=(
        "Inference mode is per thread and has no guard of its own. It switches gradients off, so "
        "the GLOBAL_STATE guard fails on grad_mode, and tensors made under it have other dispatch "
        "keys, so a tensor's dispatch-key guard fails. Which of the two torch names depends on the "
        "grad mode of the call; the thread's inference mode is what differs."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose "
        "recorded context differs from the entries' in inference mode."
    ),
    remedy=Remedy(
        text=(
            "Warm up under the mode of the real calls. For training that is neither inference mode "
            "nor no_grad; a thread that serves enters inference mode itself."
        ),
        snippet=(
            "def serve():\n"
            "    with torch.inference_mode():   # in the thread: the caller's mode is not seen\n"
            "        ..."
        ),
        seen_to_work="torch 2.13.0 on CPU (a warm-up outside inference mode)",
    ),
    versions="all",
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    if seen is not None and seen.inference_mode:
        return "warmed outside inference mode and is called in it"
    mode = "" if made is None or made.inference_mode else " not"
    return f"warmed{mode} in inference mode and is called outside of it"


STATE = State("CR102", Guard.INFERENCE_MODE, _wording, "grad_mode or a tensor's dispatch keys")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over inference mode."""
    return find_state(timeline, STATE)
