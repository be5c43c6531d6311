"""CR601: a thread's current device is not that of its tensors."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR601",
    title="wrong-current-device",
    what=(
        "A Triton kernel launched from a thread raises `ValueError: Pointer argument (at 0) cannot "
        "be accessed from Triton (cpu tensor?)`, or `Triton Error [CUDA]: invalid device context`, "
        "with tensors that are on a GPU."
    ),
    why=(
        "CUDA's current device is a thread's own, and a new thread begins with device 0, whatever "
        "the thread that started it had set. A plain Triton kernel is launched on the current "
        "device and asks the driver there about the pointers that it was given. Operators of "
        "torch, and what inductor generates, set the device by their tensors."
    ),
    evidence=(
        "That error in a thread whose current device was another one than that of the GPU tensors "
        "in its frames. Where all of them were on the current device, or none on a GPU, it is an "
        "error of the program's like any other."
    ),
    remedy=Remedy(
        text="Set the device first thing in each thread, or around the launch.",
        snippet=("def work(device):\n    torch.cuda.set_device(device)\n    ..."),
        seen_to_work="torch 2.11.0 on CUDA, two GPUs",
    ),
    versions="all",
    upstream=(
        "triton-lang/triton#2441",
        "triton-lang/triton#2925",
        "pytorch/pytorch#124565",
        "pytorch/pytorch#187729",
    ),
    needs=("threads",),
)

_SIGNATURES = (
    Signature(
        types=(),
        text=re.compile(
            r"Pointer argument (?:\(at \d+\) )?cannot be accessed from Triton"
            r"|Triton Error \[(?:CUDA|HIP)\]: invalid device context"
        ),
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Errors of that text in threads whose current device was another one."""
    cases = [case for case in signatures.cases(timeline, _SIGNATURES) if _elsewhere(case)]
    if not cases:
        return Outcome()
    tids = [case.error.tid for case in cases]
    first = cases[0]
    where = words.listing(_elsewhere(first))
    found = Found(
        code="CR601",
        statements=(
            *(signatures.statement(timeline, case) for case in cases),
            *(_devices(timeline, case) for case in cases),
            *_others(timeline, first),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} launched a kernel with tensors on {where} while "
            f"its current device was cuda:{first.error.current_device}: the current device is a "
            "thread's own, and a new thread begins with device 0."
        ),
        explains=signatures.explained(timeline, _SIGNATURES),
        threads=words.refs(timeline, tids),
        stacks=signatures.stacks(timeline, cases),
        shared_state=SharedState(
            name="CUDA's current device, which is not shared",
            writer="whoever set it, in a thread of its own",
            reader=f"{words.names(timeline, tids)}, which nobody set it for",
        ),
    )
    return Outcome(found=[found])


def _elsewhere(case: Case) -> list[str]:
    """Devices of GPU tensors in the error's frames that are not the thread's current one."""
    current = case.error.current_device
    if current is None:
        return []
    gpus = [device for device in case.error.devices if device.startswith("cuda:")]
    # With a tensor on the current device as well, it can be any of them that triton refused.
    return [device for device in gpus if device != f"cuda:{current}"]


def _devices(timeline: Timeline, case: Case) -> Statement:
    text = (
        f"The current device of `{timeline.name(case.error.tid)}` was "
        f"cuda:{case.error.current_device}; the tensors in the frames of the error are on "
        f"{words.listing(case.error.devices)}."
    )
    return Statement(text, "observed", (case.error.seq,))


def _others(timeline: Timeline, case: Case) -> list[Statement]:
    """Threads whose current device was that of the tensors."""
    wanted = {int(device.partition(":")[2]) for device in _elsewhere(case)}
    found = [
        thread
        for thread in timeline.threads.values()
        if thread.tid != case.error.tid
        and thread.context is not None
        and thread.context.current_device in wanted
    ]
    if not found:
        return []
    text = f"In {words.names(timeline, (t.tid for t in found))} it was that of the tensors."
    return [Statement(text, "observed", words.seqs(t.context_seq for t in found))]
