"""CR503: a CUDA call of one thread came into another thread's capture of a CUDA graph."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.phrases import quoted
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.kernels import GraphCapture
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR503",
    title="capture-clash",
    what=(
        "A CUDA call fails with `operation not permitted when stream is capturing` in a thread "
        "that captures nothing, and the capture of another thread with `operation failed due to a "
        "previous error during capture`."
    ),
    why=(
        "`torch.cuda.graph` and `make_graphed_callables` capture with "
        '`capture_error_mode="global"` by default: '
        "while one thread captures, CUDA refuses unsafe calls (an allocation, a "
        "synchronisation, an event query) of every thread of the process, and gives the capture "
        "up. Threads that pin memory, prefetch or log do such calls all the time. What waits for "
        "the whole device, as `torch.cuda.synchronize()` does, CUDA refuses in every mode while "
        "any of its streams is captured."
    ),
    evidence=(
        "That error in one thread while another one's capture was under way: with that mode, or "
        "with another one if the capture failed as well. An error of the capturing thread over its "
        "own call is no clash."
    ),
    remedy=Remedy(
        text=(
            'Capture with `capture_error_mode="thread_local"`, and let no other thread wait for '
            "the whole device meanwhile; or capture while no other thread uses CUDA."
        ),
        snippet=(
            'with torch.cuda.graph(graph, capture_error_mode="thread_local"):\n'
            "    output = step(static_input)\n\n"
            "# another thread: its stream, not torch.cuda.synchronize()\n"
            "torch.cuda.current_stream().synchronize()"
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#188832",),
    needs=("threads", "cuda_graphs"),
)

_REFUSED = re.compile(
    r"operation not permitted when stream is capturing"
    r"|operation would make the legacy stream depend on a capturing"
    r"|cudaErrorStreamCapture(?:Unsupported|Unsafe|Implicit)"
)
_GIVEN_UP = re.compile(
    r"operation failed due to a previous error during capture|cudaErrorStreamCaptureInvalidated"
)
# A library's handle, which it makes at a thread's first use of it, cannot be made in a capture.
_HANDLE = re.compile(r"STATUS_(?:NOT_INITIALIZED|ALLOC_FAILED)|(?:cublas|cudnn|cusolver)\w*Create")
_GLOBAL = "global"
_REFUSALS = (Signature(types=(), text=_REFUSED),)
_ENDS = (Signature(types=(), text=_GIVEN_UP),)
_NEAR_NS = 2_000_000_000
"""An error is recorded when it ends its thread, after the capture that it broke."""


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root by itself
    """Captures and CUDA calls that failed over each other."""
    pairs: list[tuple[GraphCapture, list[Case]]] = []
    refused = signatures.cases(timeline, _REFUSALS)
    given_up = [c for c in signatures.cases(timeline, _ENDS) if c not in refused]
    for capture in timeline.graph_captures:
        met = [c for c in (*refused, *given_up) if _meets(capture, c)]
        foreign = [c for c in met if c.error.tid != capture.tid]
        foreign = [c for c in foreign if c in refused or not _captures(timeline, c)]
        own = [c for c in given_up if c in met and c.error.tid == capture.tid]
        broken = bool(own) and not _by_itself(own[0])
        # In other modes most calls of other threads are let through: both have to have failed.
        if (foreign or broken) if capture.mode == _GLOBAL else (foreign and broken):
            pairs.append((capture, [*foreign, *own]))
    return Outcome(found=[_finding(timeline, pairs)] if pairs else [])


def _meets(capture: GraphCapture, case: Case) -> bool:
    end = capture.t1 if capture.t1 is not None else case.error.t
    return capture.t0 <= case.error.t <= end + _NEAR_NS


def _captures(timeline: Timeline, case: Case) -> bool:
    """Whether the thread captured a graph itself: what was given up is its own capture then."""
    return any(
        capture.tid == case.error.tid and _meets(capture, case)
        for capture in timeline.graph_captures
    )


def _by_itself(case: Case) -> bool:
    """Whether the capturing thread's own call was refused: then nobody else is needed for it."""
    messages = [link.message for link in case.error.chain]
    return any(_REFUSED.search(message) or _HANDLE.search(message) for message in messages)


def _finding(timeline: Timeline, pairs: Sequence[tuple[GraphCapture, list[Case]]]) -> Found:
    captures = [capture for capture, _ in pairs]
    cases = [case for _, own in pairs for case in own]
    capturers = list(dict.fromkeys(capture.tid for capture in captures))
    others = [case.error.tid for case in cases if case.error.tid not in capturers]
    if not others:
        others = [t for t in signatures.alive(timeline, cases[0]) if t not in capturers]
    seen = any(case.error.tid not in capturers for case in cases)
    statements = [signatures.statement(timeline, case) for case in cases]
    statements += [_captured(timeline, capture) for capture in captures]
    if not seen:
        text = "Whose call broke it is not recorded"
        who = f": {words.object_(timeline, others)} ran at that time" if others else ""
        statements.append(Statement(f"{text}{who}.", "unknown"))
    stacks = signatures.stacks(timeline, cases, 1)
    first = captures[0]
    whose = words.names(timeline, others) if others else "another thread"
    return Found(
        code="CR503",
        statements=tuple(statements),
        headline=(
            f"A CUDA call of {whose} came into the capture of a CUDA graph by "
            f"{words.names(timeline, capturers)}: {_rule(captures)} and gives the capture up."
        ),
        explains=frozenset(
            {case.error.seq for case in cases}
            | signatures.explained(timeline, _REFUSALS)
            | signatures.explained(timeline, _ENDS)
        ),
        threads=words.refs(timeline, [*others, *capturers]),
        stacks=(
            *stacks,
            words.stack(timeline, first.tid, "captured a graph", first.where, first.seqs[0]),
        ),
        shared_state=SharedState(
            name="CUDA's mode of capture, one for all threads",
            writer=words.names(timeline, capturers),
            reader=whose,
        ),
    )


def _rule(captures: Sequence[GraphCapture]) -> str:
    if any(capture.mode == _GLOBAL for capture in captures):
        return 'with `capture_error_mode="global"` CUDA refuses the call'
    return "CUDA refuses such a call in every `capture_error_mode`"


def _captured(timeline: Timeline, capture: GraphCapture) -> Statement:
    end = f"to {timeline.seconds(capture.t1):.3f} s" if capture.t1 is not None else "to the end"
    said = capture.error.partition("\n")[0][:160]
    failed = f", and failed: {quoted(said)}" if said else ""
    text = (
        f"`{timeline.name(capture.tid)}` captured graph {capture.graph} with "
        f'`capture_error_mode="{capture.mode}"` from {timeline.seconds(capture.t0):.3f} s '
        f"{end}{failed}."
    )
    return Statement(text, "observed", words.seqs(capture.seqs))
