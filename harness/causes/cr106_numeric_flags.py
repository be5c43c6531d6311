"""CR106: a numeric flag of the process changed between the warm-up and the threads' calls."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.contexts import numeric_flags
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR106",
    title="numeric-flags",
    what=(
        "Compiled code was warmed up, then a flag such as the default dtype, TF32 or deterministic "
        "algorithms was changed, and worker threads compile again."
    ),
    why=(
        "Dynamo's GLOBAL_STATE guard compares the default dtype, `torch.use_deterministic_"
        "algorithms`, TF32 and the reduced-precision reductions with what they were at compile "
        "time. Those are settings of the process: whichever thread changes one, no earlier entry "
        "fits any thread's calls any more, for as long as it stays changed."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose reason "
        "is `GLOBAL_STATE changed:` and such a flag, or whose recorded context differs from the "
        "entries' in one."
    ),
    remedy=Remedy(
        text=(
            "Set such flags once, before the warm-up, and change none while threads run: none of "
            "them is a thread's own, however it is set."
        ),
        snippet=(
            'torch.set_float32_matmul_precision("high")   # before the warm-up\n'
            "compiled(batch)                              # the warm-up"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all (2.15 adds `cuda_matmul_precision`)",
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    differ = numeric_flags(made, seen) if made and seen else []
    if not differ:
        return "warmed under one set of numeric flags and is called under another one"
    there = ", ".join(f"{name} {value}" for name, value, _ in differ)
    here = ", ".join(f"{name} {value}" for name, _, value in differ)
    return f"warmed with {there} and is called with {here}"


STATE = State("CR106", Guard.NUMERIC, _wording, "GLOBAL_STATE, a numeric flag")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over a numeric flag."""
    return find_state(timeline, STATE)
