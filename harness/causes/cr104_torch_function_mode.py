"""CR104: warmed under a torch-function mode (a default device is one) that threads do not have."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR104",
    title="torch-function-mode",
    what=(
        "`torch.set_default_device(...)`, `with torch.device(...)` or another torch-function mode "
        "was entered in the main thread. Worker threads do not have it: they compile again, and "
        "their new tensors land on the CPU."
    ),
    why=(
        "The stack of torch-function modes is per thread and empty in a new one; the default "
        "device is such a mode. Dynamo guards on the stack (`___check_torch_function_mode_stack`)."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose reason "
        "names the torch-function mode stack, or whose recorded context differs from the entries' "
        "in its modes."
    ),
    remedy=Remedy(
        text="Name the device where tensors are made, or set the default device in every thread.",
        snippet=(
            "def loop(device):\n"
            "    torch.set_default_device(device)   # in the thread: the caller's is not seen\n"
            "    ..."
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    return f"warmed with {_modes(made)} and is called with {_modes(seen)}"


def _modes(context: Context | None) -> str:
    if context is None:
        return "modes that were not recorded"
    if not context.torch_function_modes:
        return "no torch-function mode" if context.torch_function else "torch function off"
    return f"the torch-function modes {', '.join(context.torch_function_modes)}"


STATE = State("CR104", Guard.TORCH_FUNCTION_MODE, _wording, "___check_torch_function_mode_stack")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over their torch-function modes."""
    return find_state(timeline, STATE)
