"""CR317: two threads imported dynamo or inductor at once, each by its first use of it."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR317",
    title="lazy-import-race",
    what=(
        "A thread's first call of compiled code, or its first block mask, dies of `_DeadlockError: "
        "deadlock detected by _ModuleLock('torch._dynamo')`, or of `ImportError: cannot import "
        "name ... from partially initialized module 'torch._inductor...'`."
    ),
    why=(
        "`import torch` leaves dynamo and inductor to be imported by whatever uses them first. "
        "Their modules import each other. Where two threads begin at two ends of that ring each "
        "comes to a module that the other one is in the middle of: Python sees the deadlock, or "
        "lets one of them have a half-made module."
    ),
    evidence=(
        "That error over a module of torch's. `_DeadlockError` takes two threads; a half-made "
        "module does so where other threads were alive, since from one thread torch imports whole."
    ),
    remedy=Remedy(
        text="Import them in the main thread before any thread starts.",
        snippet="import torch._dynamo\nimport torch._inductor.compile_fx",
        seen_to_work="torch 2.13.0 on CPU",
    ),
    versions="all",
    needs=("threads",),
)

_MODULE = r"torch\.(?:_dynamo|_inductor|_functorch|_higher_order_ops|fx|_export)\b"
_SIGNATURES = (
    Signature(
        types=("_frozen_importlib._DeadlockError", "importlib._bootstrap._DeadlockError"),
        text=re.compile(rf"_ModuleLock\('{_MODULE}"),
    ),
    Signature(
        types=("ImportError", "AttributeError"),
        text=re.compile(rf"partially initialized module '{_MODULE}"),
    ),
    # An import that fails takes its module out again, which another thread was about to use.
    Signature(
        types=("KeyError",),
        text=re.compile(rf"^'{_MODULE}"),
        files=("<frozen importlib._bootstrap>",),
        innermost=True,
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root by itself
    """Imports of torch's that failed so."""
    cases = [
        case
        for case in signatures.cases(timeline, _SIGNATURES)
        if _by_two(case) or signatures.alive(timeline, case)
    ]
    return Outcome(found=[_finding(timeline, cases)] if cases else [])


def _by_two(case: Case) -> bool:
    """Whether the error itself says that there were two threads."""
    return case.link.type.endswith("_DeadlockError")


def _finding(timeline: Timeline, cases: Sequence[Case]) -> Found:
    tids = [case.error.tid for case in cases]
    others = dict.fromkeys(tid for case in cases for tid in signatures.alive(timeline, case))
    others = dict.fromkeys(tid for tid in others if tid != timeline.main_tid) or others
    return Found(
        code="CR317",
        statements=(
            *(signatures.statement(timeline, case) for case in cases),
            Statement(
                f"{words.begin(words.object_(timeline, others))} ran at that time"
                f"{'' if any(map(_by_two, cases)) else '; from one thread torch imports whole'}: "
                "another one was in the middle of the same imports.",
                "inferred",
            )
            if others
            else Statement("Which other thread imported them is not recorded.", "unknown"),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} failed while importing a part of torch that "
            "another thread was importing: dynamo and inductor are imported by their first use, "
            "and two threads began at once."
        ),
        explains=signatures.explained(timeline, _SIGNATURES),
        threads=words.refs(timeline, [*tids, *others]),
        stacks=signatures.stacks(timeline, cases),
        shared_state=SharedState(
            name="torch's modules, half imported",
            writer=f"{words.names(timeline, others)}" if others else "another thread",
            reader=words.names(timeline, tids),
        ),
    )
