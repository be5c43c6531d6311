"""CR101: warmed with gradients off, called with them on in other threads, or the reverse."""

from collections.abc import Sequence

from harness.causes.base import Explanation, Found, Outcome
from harness.causes.thread_state import State, find_state
from harness.events.values import Context
from harness.statements import Remedy
from harness.timeline.reasons import Guard
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR101",
    title="grad-mode",
    what=(
        "Compiled code was warmed up in one grad mode and is called in the other one by worker "
        "threads. Every worker finds that no cache entry fits and compiles again, all at once, in "
        "the middle of the run."
    ),
    why=(
        "Whether gradients are on is part of dynamo's GLOBAL_STATE guard, and each thread has its "
        "own grad mode: a new thread starts with gradients on whatever `torch.no_grad()` block "
        "started it. A warm-up under `no_grad` therefore makes entries that no training call can "
        "use."
    ),
    evidence=(
        "A miss or compile in a thread, where every entry was made by other threads, whose reason "
        "is `GLOBAL_STATE changed: grad_mode`, or whose recorded context differs from the "
        "entries' in grad mode."
    ),
    remedy=Remedy(
        text=(
            "Warm up in the grad mode of the real calls, backward included, at two lengths, on "
            "every device, before the threads start."
        ),
        snippet=(
            "for device in devices:\n"
            "    for length in (512, 768):          # two, so that the size becomes symbolic\n"
            "        loss = forward(batch(length, device)).float().sum()\n"
            "        loss.backward()                # not under torch.no_grad()\n"
            "model.zero_grad(set_to_none=True)\n"
            "# only now start the threads"
        ),
        seen_to_work="torch 2.11.0 on CUDA (10 of 10 runs without a compile in a thread), "
        "torch 2.13.0 on CPU",
    ),
    versions="all; the compiles can crash other threads up to torch 2.12 (CR301)",
    upstream=("pytorch/pytorch#126024",),
    needs=("compiles", "guards"),
)


def _wording(made: Context | None, seen: Context | None) -> str:
    if made is None and seen is None:  # torch's reason alone names no side
        return "warmed in one grad mode and is called in the other one"
    on = seen.grad_mode if seen else not (made.grad_mode if made else False)
    here, there = ("on", "off") if on else ("off", "on")
    return f"warmed with gradients {there} and is called with them {here}"


STATE = State("CR101", Guard.GRAD_MODE, _wording, "GLOBAL_STATE grad_mode")


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Threads that missed the warm-up's entries over grad mode."""
    return find_state(timeline, STATE)
