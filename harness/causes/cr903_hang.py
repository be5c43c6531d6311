"""CR903: the time limit passed while nothing moved any more."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.cr902_native_crash import last_active, last_words
from harness.diagnosis.report import Remedy, Statement
from harness.timeline.model import LockWait
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR903",
    title="hang",
    what="The program came to a stop: at the time limit it used no CPU and recorded nothing.",
    why=(
        "Threads wait for each other. With `torch.compile` the usual ring has dynamo's compile "
        "lock in it: a backend or a hook takes a lock of the program's while dynamo holds its own, "
        "and the thread that has the program's lock calls something that must compile."
    ),
    evidence="The time limit was reached with an idle process tree.",
    remedy=Remedy(
        text=(
            "See who waits for the compile lock and who holds it, below, and the stacks at the "
            "time limit. Call nothing that can compile while holding a lock that a backend or a "
            "callback takes."
        ),
    ),
    versions="all",
    upstream=("pytorch/pytorch#180701",),
    may_follow=("CR1", "CR2", "CR3", "CR4"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """A hang."""
    ended = timeline.ended
    if ended is None or not ended.deadline_hit or not ended.idle_at_deadline:
        return Outcome()
    threads = last_active(timeline)
    waits = [wait for wait in timeline.lock_waits if wait.t1 is None]
    open_ = timeline.open_compiles()
    statements = [
        Statement(
            f"After {ended.timeout_s:g} s the program neither used the CPU nor recorded anything.",
            "observed",
        ),
        *(_wait(timeline, wait) for wait in waits),
        *last_words(timeline, threads),
    ]
    if ended.stacks:
        statements.append(
            Statement("Every thread's stack at that moment is kept with the run's end.", "observed")
        )
    found = Found(
        code="CR903",
        statements=tuple(statements),
        headline=_headline(timeline, waits, ended.timeout_s),
        because=frozenset(seq for c in open_ for seq in c.seqs),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=tuple(
            words.stack(timeline, c.tid, "was compiling", c.where, c.seqs[0]) for c in open_[:2]
        ),
    )
    return Outcome(found=[found])


def _wait(timeline: Timeline, wait: LockWait) -> Statement:
    owner = f"`{timeline.name(wait.owner)}`" if wait.owner is not None else "an unknown thread"
    text = (
        f"`{timeline.name(wait.tid)}` waited for `{wait.lock}` since "
        f"{timeline.seconds(wait.t0):.3f} s; {owner} held it then."
    )
    return Statement(text, "observed", words.seqs(wait.seqs))


def _headline(timeline: Timeline, waits: Sequence[LockWait], timeout_s: float) -> str:
    text = f"The program hung: nothing moved at the time limit of {timeout_s:g} s"
    if not waits:
        return f"{text}."
    wait = waits[0]
    held = f", held by `{timeline.name(wait.owner)}`" if wait.owner is not None else ""
    return f"{text}, and `{timeline.name(wait.tid)}` waited for dynamo's compile lock{held}."
