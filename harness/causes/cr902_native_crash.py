"""CR902: a signal such as SIGSEGV or SIGABRT ended the process."""

from collections.abc import Sequence

from harness.causes import crashed, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.endings import (
    CRASHES,
    compiling,
    compiling_stacks,
    crash_signal,
    last_active,
    last_words,
    stacks_kept,
)
from harness.statements import Remedy, Statement
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR902",
    title="native-crash",
    what="The process died of SIGSEGV, SIGABRT, SIGBUS, SIGILL or SIGFPE.",
    why=(
        "Code below Python crashed or gave up. Known ways in which threads and `torch.compile` "
        "end so: `torch._dynamo.reset()` while another thread compiles or calls, CUDA graphs "
        '(`mode="reduce-overhead"`) used from several threads, and on a CUDA build without a GPU '
        "the first compile in a thread that ends before another thread's (CR320)."
    ),
    evidence="The signal that ended the process, as the parent saw it.",
    remedy=Remedy(
        text=(
            "Look at the frame in which it crashed, and at what each thread did last; let only one "
            "thread compile, before the others start."
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#123177",),
    may_follow=("CR1", "CR2", "CR3", "CR4"),
)


_ALONE = Remedy(
    text=(
        "No two threads used compiled code, so this is no race of compiles. Look at the frame in "
        "which it crashed: at the arguments that it passed to native code. If it is within a "
        'compile, see whether `torch.compile(..., backend="eager")`, and then `"aot_eager"`, '
        "crashes too."
    )
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """A crash below Python."""
    number = crash_signal(timeline)
    if number is None or any(found.ends for found in earlier):
        return Outcome()
    open_ = timeline.open_compiles()
    doing = compiling(timeline) or "with no compile under way"
    name = CRASHES[number]
    threads = last_active(timeline)
    ended = timeline.ended
    assert ended is not None
    own = ended.signal is not None
    crash = crashed.crashed(timeline)
    at = f", {crashed.place(crash, short=True)}" if crash else ""
    stacks = list(compiling_stacks(timeline))
    if crash:
        mine = crashed.stack(timeline, crash)
        stacks = [mine, *(stack for stack in stacks if stack.thread != mine.thread)]
    how = "ended the process" if own else "ended it, to judge by its exit code"
    found = Found(
        code="CR902",
        statements=(
            Statement(f"{name} {how}.", "observed" if own else "inferred"),
            *([crashed.statement(timeline, crash)] if crash else []),
            *last_words(timeline, threads),
            *stacks_kept(ended),
        ),
        headline=f"The process died of {name} {doing}{at}.",
        because=frozenset(seq for c in open_ for seq in c.seqs),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=tuple(stacks),
        remedy=_ALONE if len(timeline.workload_threads()) < 2 else None,
    )
    return Outcome(found=[found])
