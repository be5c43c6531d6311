"""CR105: warmed with one number of intra-op threads, called with another one in other threads."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR105",
    title="num-threads",
    what=(
        "Compiled code was warmed up with one value of `torch.get_num_threads()` and is called "
        "under another one by worker threads, which all compile again."
    ),
    why=(
        "The number of intra-op threads is part of dynamo's GLOBAL_STATE guard, since generated "
        "CPU code divides its work by it. The number is a thread's own: one that lives while "
        "`torch.set_num_threads` runs in another keeps its old value, and a new thread begins with "
        "the last value that any thread set."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose reason "
        "is `GLOBAL_STATE changed: num_threads`, or whose recorded context differs from the "
        "entries' in it."
    ),
    remedy=Remedy(
        text=(
            "Set the number once, before the warm-up and before any thread starts; or set it at "
            "the start of each thread to the value of the warm-up."
        ),
        snippet=(
            "torch.set_num_threads(1)               # first of all\n"
            "compiled(batch)                        # the warm-up\n"
            "threads = [threading.Thread(target=train) for _ in range(n)]"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    if made is None or seen is None or made.num_threads == seen.num_threads:
        return "warmed with one number of intra-op threads and is called with another one"
    return (
        f"warmed with {_threads(made.num_threads)} and is called with {_threads(seen.num_threads)}"
    )


def _threads(number: int) -> str:
    return f"{number} intra-op thread{'' if number == 1 else 's'}"


STATE = State("CR105", Guard.NUM_THREADS, _wording, "GLOBAL_STATE num_threads")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over the number of intra-op threads."""
    return find_state(timeline, STATE)
