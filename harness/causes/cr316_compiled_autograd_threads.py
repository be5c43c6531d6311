"""CR316: compiled autograd in two threads at once."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR316",
    title="compiled-autograd-threads",
    what=(
        "`backward()` under compiled autograd fails with `NotImplementedError: Trying to run "
        "compiled autograd within another compiled autograd call`, or with an error that says "
        "that `compiled_autograd._enable()` does not support threads."
    ),
    why=(
        "Compiled autograd keeps what it is doing in state of the process: one backward at a time "
        "can be captured or replayed under it. A second thread's backward finds it busy and takes "
        "that for a nested call."
    ),
    evidence=(
        "That error, raised by autograd's engine, while another thread was inside a backward too. "
        "The same error in one thread alone is a nested backward, and no race."
    ),
    remedy=Remedy(
        text=(
            "Let one thread at a time run backward under compiled autograd, with one lock around "
            "it, or leave compiled autograd off where several threads train."
        ),
        snippet=(
            "with backward_lock:                    # one for all threads\n    loss.backward()"
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#152219", "pytorch/pytorch#135298", "pytorch/pytorch#134530"),
    needs=("threads", "backward"),
    may_follow=("CR207",),
)

_TEXT = re.compile(
    r"Trying to run compiled autograd within another compiled autograd call"
    r"|compiled_autograd\._enable\(\) (?:requires no threads in backwards"
    r"|does not support multiple Python threads)"
)
_SIGNATURES = (Signature(types=("NotImplementedError", "RuntimeError"), text=_TEXT),)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Backward calls that failed so while another thread was inside one."""
    pairs = [(case, _others(timeline, case)) for case in signatures.cases(timeline, _SIGNATURES)]
    pairs = [(case, others) for case, others in pairs if others]
    if not pairs:
        return Outcome()
    cases = [case for case, _ in pairs]
    tids = [case.error.tid for case in cases]
    others = list(dict.fromkeys(tid for _, own in pairs for tid in own))
    return Outcome(
        found=[
            Found(
                code="CR316",
                statements=(
                    *(signatures.statement(timeline, case) for case in cases),
                    *(_beside(timeline, case, own) for case, own in pairs),
                ),
                headline=(
                    f"{words.subject(timeline, tids, [])} failed in backward under compiled "
                    f"autograd, because {words.names(timeline, others)} was inside one too: "
                    "compiled autograd serves one thread at a time."
                ),
                explains=signatures.explained(timeline, _SIGNATURES),
                because=frozenset(
                    seq for compile_ in timeline.backward_compiles for seq in compile_.seqs
                ),
                threads=words.refs(timeline, [*tids, *others]),
                stacks=signatures.stacks(timeline, cases),
                shared_state=SharedState(
                    name="compiled autograd's state of the process",
                    writer=f"{words.names(timeline, others)}, inside a backward",
                    reader=f"{words.names(timeline, tids)}, in another backward",
                ),
            )
        ]
    )


def _others(timeline: Timeline, case: Case) -> list[int]:
    """Threads that were inside a backward when this one's failed."""
    failed = [
        f
        for f in timeline.backwards_failed
        if f.tid == case.error.tid and f.t <= case.error.t and _TEXT.search(f.error)
    ]
    return list(failed[-1].others) if failed else []


def _beside(timeline: Timeline, case: Case, others: Sequence[int]) -> Statement:
    last = [f for f in timeline.backwards_failed if f.tid == case.error.tid]
    text = (
        f"{words.begin(words.object_(timeline, others))} "
        f"{'were' if len(others) > 1 else 'was'} inside a backward when that of "
        f"`{timeline.name(case.error.tid)}` failed."
    )
    return Statement(text, "observed", words.seqs(f.seq for f in last[-1:]))
