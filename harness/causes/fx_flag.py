"""The FX-tracing flag, which up to torch 2.13 is one for the process: who saw whose trace.

What CR301 (the flag of another thread's trace) and CR302 (the flag left set) have in common.
"""

from harness.timeline.model import ErrorSeen, FlaggedCall
from harness.timeline.timeline import Timeline

FX_ERROR = "Detected that you are using FX to symbolically trace a dynamo-optimized function"
_WORDS = "using FX to symbolically trace"
FLAG = "torch.fx._symbolic_trace._is_fx_tracing_flag"


def seen_of_others(timeline: Timeline) -> list[FlaggedCall]:
    """Calls that saw the flag of another thread's trace."""
    # A trace may have ended between the look at the flag and the look at who traces. That is rare,
    # so where it is the rule the flag was left set.
    traced = any(c.tracing and c.tid not in c.tracing for c in timeline.flagged)
    unlucky = traced and not set_at_end(timeline)
    return [
        call
        for call in timeline.flagged
        if call.tid not in call.tracing
        and (call.tracing or unlucky or timeline.tracing_at(call.t, other_than=call.tid))
    ]


def orphans(timeline: Timeline) -> list[FlaggedCall]:
    """Calls that found the flag set while nobody was known to trace."""
    return [
        call
        for call in timeline.flagged
        if not call.tracing and not timeline.tracing_at(call.t, other_than=-1)
    ]


def set_at_end(timeline: Timeline) -> bool:
    """Whether the flag was set at the end, with no thread compiling or tracing."""
    event = timeline.invariants
    return event is not None and event.data.fx_flag_clear is False and not event.data.busy_tids


def is_fx_error(error: ErrorSeen) -> bool:
    """Whether an error is, or was raised from, the FX error of ``compile_wrapper``."""
    return any(
        FX_ERROR in link.message
        and bool(link.frames)
        and link.frames[-1].function == "compile_wrapper"
        for link in error.chain
    )


def is_fx_text(error: ErrorSeen) -> bool:
    """Whether the FX error's words are in an error, wherever it was raised."""
    return any(_WORDS in link.message for link in error.chain)


def was_patched(error: ErrorSeen) -> bool:
    """Whether a module call was caught by another thread's tracer, which patches ``nn.Module``.

    That is what a call meets that runs eagerly during the other's trace.
    """
    return any(
        frame.function == "module_call_wrapper" and frame.file.endswith("fx/_symbolic_trace.py")
        for link in error.chain
        for frame in link.frames
    )
