"""CR902: a signal such as SIGSEGV or SIGABRT ended the process."""

import signal
from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.diagnosis.report import Remedy, Statement
from harness.timeline.model import Thread
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR902",
    title="native-crash",
    what="The process died of SIGSEGV, SIGABRT, SIGBUS, SIGILL or SIGFPE.",
    why=(
        "Code below Python crashed or gave up. Known ways in which threads and `torch.compile` "
        "end so: `torch._dynamo.reset()` while another thread compiles or calls, CUDA graphs "
        '(`mode="reduce-overhead"`) used from several threads, and on a CUDA build without a GPU '
        "the first compile in a thread that ends before another thread's."
    ),
    evidence="The signal that ended the process, as the parent saw it.",
    remedy=Remedy(
        text=(
            "Look at what each thread did last, below, and at the stacks that faulthandler wrote; "
            "let only one thread compile, before the others start."
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#123177",),
    may_follow=("CR1", "CR2", "CR3", "CR4"),
)

CRASHES = {
    int(number): number.name
    for number in (
        signal.SIGSEGV,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGILL,
        signal.SIGFPE,
    )
}


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """A crash below Python."""
    number = crash_signal(timeline)
    if number is None:
        return Outcome()
    open_ = timeline.open_compiles()
    name = CRASHES[number]
    threads = last_active(timeline)
    doing = (
        f"while {words.object_(timeline, (c.tid for c in open_))} compiled "
        f"{words.codes(c.code for c in open_)}"
        if open_
        else "with no compile under way"
    )
    own = timeline.ended is not None and timeline.ended.signal is not None
    how = "ended the process" if own else "ended it, to judge by its exit code"
    found = Found(
        code="CR902",
        statements=(
            Statement(f"{name} {how}.", "observed" if own else "inferred"),
            *last_words(timeline, threads),
        ),
        headline=f"The process died of {name} {doing}.",
        because=frozenset(seq for c in open_ for seq in c.seqs),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=tuple(
            words.stack(timeline, c.tid, "was compiling", c.where, c.seqs[0]) for c in open_[:2]
        ),
    )
    return Outcome(found=[found])


def crash_signal(timeline: Timeline) -> int | None:
    """The signal of a crash that ended the process, also where a shell in between says 128 + n."""
    ended = timeline.ended
    if ended is None or ended.killed_from_outside or ended.deadline_hit:
        return None
    if ended.signal is not None:
        return ended.signal if ended.signal in CRASHES else None
    number = (ended.exit_code or 0) - 128
    return number if number in CRASHES and timeline.end_seq is None else None


def last_active(timeline: Timeline, limit: int = 8) -> list[Thread]:
    """Threads that had not ended, workload threads first, the latest first."""
    alive = [thread for thread in timeline.threads.values() if not thread.ended and thread.last_seq]
    alive.sort(key=lambda thread: (not thread.called_compiled, -thread.t1))
    return alive[:limit]


def last_words(timeline: Timeline, threads: Sequence[Thread]) -> list[Statement]:
    """What each thread was seen doing last."""
    found = []
    for thread in threads:
        rungs = thread.ladder.rungs()
        if not rungs:
            continue
        last = next((rung for rung in reversed(rungs) if rung.span and rung.t1 is None), rungs[-1])
        tense = "was in" if last.span and last.t1 is None else "was last seen at"
        detail = f" {last.detail}" if last.detail else ""
        at = f"{timeline.seconds(last.t0):.3f} s"
        text = f"`{thread.name}` {tense}: {last.what}{detail} (since {at})."
        found.append(Statement(text, "observed", (last.seq,)))
    return found
