"""CR103: warmed under autocast, called without it in other threads, or the reverse."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.contexts import autocast
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR103",
    title="autocast",
    what=(
        "Mixed precision was switched on around the whole program in the main thread. Worker "
        "threads do not see it: they compile again and, worse, compute in full precision."
    ),
    why=(
        "Autocast is per thread and off in a new one. Its state (enabled and dtype for each device "
        "type, and the cast cache) is part of dynamo's GLOBAL_STATE guard."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose reason "
        "is `GLOBAL_STATE changed: autocast(...)`, or whose recorded context differs from the "
        "entries' in autocast."
    ),
    remedy=Remedy(
        text="Enter autocast inside each thread's own function, as well as in the warm-up.",
        snippet=(
            "def loop():\n"
            '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
            "        ...                            # the compiled calls"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    there, here = (_autocast(context) for context in (made, seen))
    if there == here:
        return "warmed under another state of autocast than it is called under"
    return f"warmed {there} and is called {here}"


def _autocast(context: Context | None) -> str:
    on = sorted(autocast(context).items()) if context else []
    dtypes = " and ".join(f"{device} {dtype.removeprefix('torch.')}" for device, dtype in on)
    return f"under autocast ({dtypes})" if dtypes else "without autocast"


STATE = State("CR103", Guard.AUTOCAST, _wording, "GLOBAL_STATE autocast")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over autocast."""
    return find_state(timeline, STATE)
