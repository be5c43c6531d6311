"""CR315: a container was changed by another thread while dynamo read it."""

import re
from collections.abc import Sequence

from harness.causes import signatures, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.signatures import Case, Signature
from harness.statements import Remedy, SharedState, Statement
from harness.timeline.model import Compile
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR315",
    title="container-mutated",
    what=(
        "A compile fails with `InternalTorchDynamoError: RuntimeError: OrderedDict mutated during "
        "iteration`, or `dictionary changed size during iteration`, where the same code runs eager "
        "without an error."
    ),
    why=(
        "While it traces, dynamo walks through the dicts, sets and modules that a function uses, "
        "longer than the function itself would. Python notices if another thread adds or removes "
        "something meanwhile."
    ),
    evidence=(
        "That error, raised in dynamo's own code during a compile, while other threads of the "
        "program were alive. Which of them changed the container is not recorded."
    ),
    remedy=Remedy(
        text=(
            "Change no dict, set or module that compiled code uses while another thread may "
            "compile: compile before the threads start, pass a copy, or use one lock for both."
        ),
        snippet="step(dict(registry), batch)            # a copy that nobody changes",
    ),
    versions="all",
    upstream=("pytorch/pytorch#196208",),
    needs=("threads", "compiles"),
    may_follow=("CR1", "CR2", "CR303"),
)

_TEXT = re.compile(
    r"RuntimeError: (?:OrderedDict|deque) mutated during iteration"
    r"|RuntimeError: (?:dictionary|Set|dictionary keys) changed (?:size )?during iteration"
)
_SIGNATURES = (
    Signature(types=("torch._dynamo.exc.InternalTorchDynamoError",), text=_TEXT),
    Signature(
        types=("RuntimeError",),
        text=re.compile(_TEXT.pattern.replace("RuntimeError: ", "^")),
        files=(
            "torch/_dynamo/variables/builder.py",
            "torch/_dynamo/variables/dicts.py",
            "torch/_dynamo/variables/user_defined.py",
            "torch/_dynamo/guards.py",
            "torch/_dynamo/utils.py",
        ),
        innermost=True,
    ),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """Compiles that failed so while other threads were there."""
    cases = [
        case for case in signatures.cases(timeline, _SIGNATURES) if signatures.alive(timeline, case)
    ]
    return Outcome(found=[_finding(timeline, cases)] if cases else [])


def _finding(timeline: Timeline, cases: Sequence[Case]) -> Found:
    tids = [case.error.tid for case in cases]
    others = list(dict.fromkeys(t for case in cases for t in signatures.alive(timeline, case)))
    compiles = [c for case in cases for c in _failed(timeline, case)]
    what = f" while it compiled {words.codes(c.code for c in compiles)}" if compiles else ""
    return Found(
        code="CR315",
        statements=(
            *(signatures.statement(timeline, case) for case in cases),
            *(
                Statement(
                    f"It was inside the compile of `{c.code.name}`, which failed.",
                    "observed",
                    words.seqs(c.seqs),
                )
                for c in compiles
            ),
            Statement(
                f"{words.begin(words.object_(timeline, others))} ran at that time; which of them "
                "changed the container is not recorded.",
                "inferred",
            ),
        ),
        headline=(
            f"{words.subject(timeline, tids, [])} failed{what}, because another thread changed a "
            "container that dynamo was reading."
        ),
        explains=signatures.explained(timeline, _SIGNATURES),
        because=frozenset(seq for c in compiles for seq in c.seqs),
        threads=words.refs(timeline, [*tids, *others]),
        stacks=signatures.stacks(timeline, cases),
        shared_state=SharedState(
            name="a container that the compiled code uses",
            writer=f"one of {words.names(timeline, others)}",
            reader=f"{words.names(timeline, tids)}, inside a compile",
        ),
    )


def _failed(timeline: Timeline, case: Case) -> list[Compile]:
    """The thread's last compile that failed before the error was recorded."""
    found = [
        compile_
        for history in timeline.codes.values()
        for compile_ in history.compiles
        if compile_.on == case.error.tid and compile_.ok is False and compile_.t0 <= case.error.t
    ]
    return sorted(found, key=lambda compile_: compile_.t0)[-1:]
