"""CR501: inductor's CUDA graph trees were used from a thread that has none of their state."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, Statement
from harness.timeline.model import Compile
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR501",
    title="cudagraph-tree-thread-state",
    what=(
        'A thread\'s call of code compiled with `mode="reduce-overhead"` or `"max-autotune"` dies '
        "of a bare `AssertionError` in `torch/_inductor/cudagraph_trees.py`, `get_obj`."
    ),
    why=(
        "Up to torch 2.12 CUDA graph trees keep their managers in thread-local state that is made "
        "where the module is first imported. Autograd hands it on to its threads; a thread of the "
        "program's has none, and the assertion says so."
    ),
    evidence="That error, raised in `get_obj`.",
    remedy=Remedy(
        text=(
            "Use torch 2.13 or newer, make all such calls in one thread, or compile without CUDA "
            "graphs where several threads call."
        ),
        snippet=(
            'step = torch.compile(step, mode="max-autotune-no-cudagraphs")\n'
            "# or, with one thread for all calls that use CUDA graphs:\n"
            "gpu = concurrent.futures.ThreadPoolExecutor(max_workers=1)\n"
            "result = gpu.submit(step, batch).result()"
        ),
    ),
    versions="up to 2.12",
    upstream=("pytorch/pytorch#123177", "pytorch/pytorch#184357"),
    needs=("threads",),
    may_follow=("CR1", "CR201", "CR202", "CR203", "CR204", "CR205", "CR206", "CR303"),
)

_SIGNATURES = (
    Signature(
        types=("AssertionError",),
        text=re.compile(""),
        files=("torch/_inductor/cudagraph_trees.py",),
        function="get_obj",
        innermost=True,
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Calls that failed so."""
    cases = signatures.cases(timeline, _SIGNATURES)
    return Outcome(found=[_finding(timeline, cases)] if cases else [])


def _finding(timeline: Timeline, cases: Sequence[Case]) -> Found:
    tids = [case.error.tid for case in cases]
    compiles = [c for case in cases for c in _compile_of(timeline, case)]
    captures = [c for c in timeline.graph_captures if c.trees and c.tid not in tids]
    statements = [
        signatures.statement(
            timeline, case, also=", raised in `get_obj` of `torch/_inductor/cudagraph_trees.py`"
        )
        for case in cases
    ]
    if captures:
        able = dict.fromkeys(capture.tid for capture in captures)
        text = f"Graph trees captured graphs in {words.object_(timeline, able)}, not in those."
        statements.append(
            Statement(text, words.unseen(timeline), words.seqs(*(c.seqs for c in captures)))
        )
    return Found(
        code="CR501",
        statements=tuple(statements),
        headline=(
            f"{words.subject(timeline, tids, [])} failed in inductor's CUDA graph trees: their "
            "state is thread-local up to torch 2.12, and the thread has none."
        ),
        explains=signatures.explained(timeline, _SIGNATURES),
        because=frozenset(seq for c in compiles for seq in c.seqs),
        threads=words.refs(timeline, tids),
        stacks=signatures.stacks(timeline, cases),
    )


def _compile_of(timeline: Timeline, case: Case) -> list[Compile]:
    """The thread's last compile before: what it made asks for the state that is not there."""
    found = [
        compile_
        for history in timeline.program_codes()
        for compile_ in history.compiles
        if compile_.on == case.error.tid and compile_.t0 <= case.error.t
    ]
    return sorted(found, key=lambda compile_: compile_.t0)[-1:]
