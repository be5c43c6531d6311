"""CR904: memory ran out, and nothing that was seen says why."""

from collections.abc import Sequence

from harness.causes import out_of_memory, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.out_of_memory import Failure
from harness.child.oom_text import CPU
from harness.statements import Note, Remedy, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR904",
    title="out-of-memory-cause-unknown",
    what="A request for memory failed and ended a thread or the program.",
    why=(
        "A model, a batch or a cache that is too large, a leak, or another process on the same "
        "device. No dense attention outside compiled code and no block mask asked for it."
    ),
    evidence=(
        "A failed request, as the caching allocator of a GPU or the error's text tells, that no "
        "other finding accounts for. One that the program handled is a note."
    ),
    remedy=Remedy(
        text=(
            "Look at what was in use then, and at the peaks of each phase: memory that grows from "
            "phase to phase is kept by somebody. On a GPU `torch.cuda.memory` shows who allocated "
            "what."
        ),
    ),
    versions="all",
    needs=("threads",),
)


_ON_CPU = Remedy(
    text=(
        "Look at what was asked for and at the peaks of each phase: memory that grows from phase "
        "to phase is kept by somebody. A bound on the process's data (`--memory-cap`, "
        "`ulimit -d`) counts reserved address space as well: stacks of threads and pools of "
        "allocators. `tracemalloc` shows what Python holds, `torch.profiler` with "
        "`profile_memory=True` which operators allocate."
    )
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """Failed requests that nothing else accounts for."""
    known = frozenset[int]().union(*(found.explains for found in earlier))
    outcome = Outcome()
    open_ = [
        failure
        for failure in out_of_memory.failures(timeline)
        if not failure.seqs & known and failure.data.doing != "block_mask"
    ]
    fatal = [failure for failure in open_ if not failure.survived(timeline)]
    for failure in open_:
        if failure not in fatal:
            outcome.notes.append(_note(timeline, failure))
    if fatal:
        outcome.found.append(_finding(timeline, fatal))
    return outcome


def _note(timeline: Timeline, failure: Failure) -> Note:
    text = (
        f"`{timeline.name(failure.tid)}` {out_of_memory.in_words(failure)}: it failed, "
        "and the program went on."
    )
    return Note(text=text, code="CR904", pid=timeline.pid, evidence=words.seqs(failure.seqs))


def _finding(timeline: Timeline, found: Sequence[Failure]) -> Found:
    tids = list(dict.fromkeys(failure.tid for failure in found))
    first = found[0]
    return Found(
        code="CR904",
        statements=(
            *(out_of_memory.statement(timeline, failure) for failure in found),
            Statement("What took the memory is not known from this recording.", "unknown"),
        ),
        headline=(
            f"{words.begin(words.object_(timeline, tids))} ran out of memory, not in dense "
            f"attention: it {out_of_memory.in_words(first)}."
        ),
        explains=out_of_memory.seqs(found),
        threads=words.refs(timeline, tids),
        stacks=out_of_memory.stacks(timeline, found),
        remedy=_ON_CPU if all(failure.data.device == CPU for failure in found) else None,
    )
