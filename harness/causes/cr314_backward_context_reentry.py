"""CR314: a compiled backward entered a ``contextvars`` context that another one was in."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR314",
    title="backward-context-reentry",
    what=(
        "`backward()` fails with `RuntimeError: cannot enter context: <_contextvars.Context "
        "object ...> is already entered`, now and then."
    ),
    why=(
        "In torch 2.12 and 2.13 `backward()` keeps one copy of the caller's context variables for "
        "all its autograd threads, and each compiled backward runs inside that very object. A "
        "context can be entered once at a time: where a compiled backward on the caller's thread "
        "and one on a device's thread, or one nested in another, meet, the second one fails."
    ),
    evidence="That error, raised below autograd's `backward` and not by the program's own code.",
    remedy=Remedy(
        text=(
            "Use torch 2.14 or newer, where each compiled backward enters a copy of its own. Up to "
            "then keep the parts on one device, or call backward of the parts one after another."
        ),
        snippet=(
            "with torch.autograd.set_multithreading_enabled(False):\n"
            "    loss.backward()                    # all of it on the caller's thread"
        ),
    ),
    versions="2.12 and 2.13",
    upstream=("pytorch/pytorch#185372", "pytorch/pytorch#186659"),
    needs=("threads",),
    may_follow=("CR207",),
)

_SIGNATURES = (
    Signature(
        types=("RuntimeError",),
        text=re.compile(r"^cannot enter context: <_contextvars\.Context object .*> is already"),
        files=("torch/autograd/function.py", "torch/autograd/graph.py"),
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Backward calls that failed so."""
    cases = [
        case
        for case in signatures.cases(timeline, _SIGNATURES)
        if not (case.link.frames and case.link.frames[-1].user)
    ]
    if not cases:
        return Outcome()
    tids = [case.error.tid for case in cases]
    others = {
        tid
        for failed in timeline.backwards_failed
        if failed.tid in tids and "cannot enter context" in failed.error
        for tid in failed.others
    }
    threads = sorted(timeline.autograd)
    who = words.subject(timeline, tids, [])
    statements = [signatures.statement(timeline, case) for case in cases]
    statements.append(_shared(timeline, threads, sorted(others)))
    return Outcome(
        found=[
            Found(
                code="CR314",
                statements=tuple(statements),
                headline=(
                    f"{who} failed in backward: a compiled backward entered a context of context "
                    "variables that another one was in (torch 2.12 and 2.13)."
                ),
                explains=signatures.explained(timeline, _SIGNATURES),
                because=frozenset(
                    seq for compile_ in timeline.backward_compiles for seq in compile_.seqs
                ),
                threads=words.refs(timeline, [*tids, *threads, *sorted(others)]),
                stacks=signatures.stacks(timeline, cases),
                shared_state=SharedState(
                    name="the context that `backward()` keeps for its threads",
                    writer="the compiled backward that had entered it",
                    reader="the compiled backward that entered it next",
                ),
            )
        ]
    )


def _shared(timeline: Timeline, threads: Sequence[int], others: Sequence[int]) -> Statement:
    """Which other thread can have been in it."""
    if threads:
        text = (
            f"Autograd's {words.object_(timeline, threads)} ran compiled code for the same "
            "callers, and enters the same context as they do."
        )
        return Statement(text, "inferred")
    if others:
        text = (
            f"{words.begin(words.object_(timeline, others))} was in a backward too; which compiled "
            "backward had entered the context is not recorded."
        )
        return Statement(text, "unknown")
    text = "Which other compiled backward had entered the context is not recorded."
    return Statement(text, "unknown")
