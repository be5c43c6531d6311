"""CR903: the time limit passed while nothing moved any more."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.endings import (
    compiling_stacks,
    holder,
    last_active,
    last_words,
    number_of,
    open_waits,
    stacks_kept,
    waiting,
)
from harness.diagnosis.report import Note, Remedy, Statement
from harness.events.ended import Ended
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
    evidence=(
        "The time limit was reached with an idle process tree. Waits for the compile lock are in "
        "the recording; what else each thread stood in is read off the stacks at the time limit."
    ),
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
    if ended is not None and ended.interrupted:
        return Outcome(notes=_when_interrupted(timeline, ended))
    if ended is None or not ended.deadline_hit or not ended.idle_at_deadline:
        return Outcome()
    threads = last_active(timeline)
    waits = open_waits(timeline)
    open_ = timeline.open_compiles()
    statements = [
        Statement(
            f"After {ended.timeout_s:g} s the program neither used the CPU nor recorded anything.",
            "observed",
        ),
        *waiting(timeline, ended),
        *last_words(timeline, threads),
        *stacks_kept(ended),
    ]
    found = Found(
        code="CR903",
        statements=tuple(statements),
        headline=_headline(timeline, waits, ended),
        because=frozenset(seq for c in open_ for seq in c.seqs),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=compiling_stacks(timeline),
    )
    return Outcome(found=[found])


def _headline(timeline: Timeline, waits: Sequence[LockWait], ended: Ended) -> str:
    text = f"The program hung: nothing moved at the time limit of {ended.timeout_s:g} s"
    if not waits:
        stood = next((wait for wait in ended.waits if wait.read), None)
        if stood is None:
            return f"{text}."
        return f"{text}, and `{stood.thread}` waited for {stood.what}."
    wait = waits[0]
    owner = holder(timeline, wait)
    held = ring = ""
    if owner is not None:
        held = f", held by `{timeline.name(owner)}`"
        its = (w for w in ended.waits if w.what and number_of(timeline, w) == owner)
        ring = next((f", which waited for {w.what}" for w in its), "")
    return f"{text}, and `{timeline.name(wait.tid)}` waited for dynamo's compile lock{held}{ring}."


def _when_interrupted(timeline: Timeline, ended: Ended) -> list[Note]:
    """What the threads waited for when somebody's patience ended, and with that the program."""
    return [
        Note(
            text=statement.text,
            certainty=statement.certainty,
            code="CR903",
            pid=timeline.pid,
            evidence=statement.evidence,
        )
        for statement in (waiting(timeline, ended) if ended.waits else ())
    ]
