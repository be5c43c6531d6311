"""CR309: under ``fullgraph=True`` two threads' calls count on one counter of the process."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR309",
    title="fullgraph-counter-race",
    what=(
        "A call of code compiled with `fullgraph=True` raises `torch.compile with fullgraph=True "
        "found no compiled frames. Compilation was not attempted and no cached compiled code was "
        "found.`, although it ran compiled, as it had before."
    ),
    why=(
        "At its beginning such a call sets a counter of compiled frames to 0, and at its end it "
        "reads it and switches it off, once more on its way out. Up to torch 2.14 the counter is a "
        "plain global of the process: the last step of one thread's call can switch it off under "
        "another one's, and the next call of any thread then sets it to 0 before that one has read "
        "it. No call that meets it loses its result but by the error."
    ),
    evidence=(
        "That error, without a reason for a skipped frame, in a thread, while another thread that "
        "calls compiled code was alive. From one thread alone it means what it says."
    ),
    remedy=Remedy(
        text=(
            "Leave `fullgraph=True` to the warm-up, where it finds graph breaks, and compile "
            "without it for the threads' calls; or put one lock around the calls; or use torch "
            "2.15, where the counter is a thread's own."
        ),
        snippet=(
            "torch.compile(f, fullgraph=True)(batch)   # once: is there a graph break?\n"
            "compiled = torch.compile(f)               # for the threads"
        ),
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="2.12 to 2.14 (forced on 2.13.0 and 2.14.1; thread-local in 2.15)",
    upstream=("pytorch/pytorch#185138", "pytorch/pytorch#196637"),
    needs=("threads", "wrapper"),
    may_follow=("CR1", "CR2", "CR303"),
)

_SIGNATURES = (
    Signature(
        types=("RuntimeError",),
        text=re.compile(
            r"fullgraph=True found no compiled frames\. Compilation was not attempted and no cached"
        ),
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root
    """Calls that failed so while another thread called compiled code."""
    pairs = [(case, _others(timeline, case)) for case in signatures.cases(timeline, _SIGNATURES)]
    pairs = [(case, others) for case, others in pairs if others]
    if not pairs:
        return Outcome()
    cases = [case for case, _ in pairs]
    tids = [case.error.tid for case in cases]
    others = list(dict.fromkeys(tid for _, own in pairs for tid in own))
    found = Found(
        code="CR309",
        statements=(
            *(signatures.statement(timeline, case) for case in cases),
            *(_beside(timeline, case, own) for case, own in pairs),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} failed in a call under `fullgraph=True` that ran "
            f"compiled: {words.names(timeline, others)} set back the counter by which torch tells, "
            "which is one for the process."
        ),
        explains=signatures.explained(timeline, _SIGNATURES),
        threads=words.refs(timeline, [*tids, *others]),
        stacks=signatures.stacks(timeline, cases),
        shared_state=SharedState(
            name="torch's count of compiled frames under `fullgraph=True`",
            writer=f"{words.names(timeline, others)}, at the end and the beginning of its calls",
            reader=f"{words.names(timeline, tids)}, at the end of a call",
        ),
    )
    return Outcome(found=[found])


def _others(timeline: Timeline, case: Case) -> list[int]:
    """Threads alive then that had called compiled code; the main one, which waits, if no other."""
    found = [
        tid
        for tid in signatures.alive(timeline, case)
        if (first := timeline.threads[tid].first_call) is not None and first <= case.error.t
    ]
    return [tid for tid in found if tid != timeline.main_tid] or found


def _beside(timeline: Timeline, case: Case, others: Sequence[int]) -> Statement:
    text = (
        f"{words.begin(words.object_(timeline, others))} called compiled code in the same period, "
        f"so one of those calls set the counter back under that of "
        f"`{timeline.name(case.error.tid)}`."
    )
    evidence = words.seqs((timeline.threads[tid].context_seq for tid in others), (case.error.seq,))
    return Statement(text, "inferred", evidence)
