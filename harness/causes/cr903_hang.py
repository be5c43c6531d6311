"""CR903: the time limit passed while nothing moved any more."""

from collections.abc import Sequence

from harness.causes import rings, words
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
from harness.events.ended import Ended
from harness.statements import Note, Remedy, Statement
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


_OWN_LOCKS = Remedy(
    text=(
        "No thread waited for dynamo's compile lock: the program's own locks are in each other's "
        "way. Take them in one order everywhere, or one lock instead of them, and hold none while "
        "waiting for another thread, a queue or a future."
    ),
    snippet=(
        "with weights:                          # the same order in every thread\n"
        "    with optimizer:\n"
        "        step()"
    ),
)
_NO_LOCK = Remedy(
    text=(
        "No thread waited for dynamo's compile lock. See what each thread waited for, below, and "
        "the stacks at the time limit: something that one of them waits for never comes."
    )
)


_OF_A_PROCESS = frozenset({"another process's end", "word from another process"})
"""What a thread waits for whose process stands because another one does."""


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:
    """A hang."""
    ended = timeline.ended
    if ended is not None and ended.interrupted:
        return Outcome(notes=_when_interrupted(timeline, ended))
    if ended is None or not ended.deadline_hit or not ended.idle_at_deadline:
        return Outcome()
    if any(found.ends for found in earlier):
        return Outcome()
    threads = last_active(timeline)
    waits = open_waits(timeline)
    open_ = timeline.open_compiles()
    ring = rings.ring(timeline, ended)
    statements = [
        Statement(
            f"After {ended.timeout_s:g} s the program neither used the CPU nor recorded anything.",
            "observed",
        ),
        *([rings.statement(ring)] if ring else []),
        *waiting(timeline, ended),
        *last_words(timeline, threads),
        *stacks_kept(ended),
    ]
    found = Found(
        code="CR903",
        statements=tuple(statements),
        headline=_headline(timeline, waits, ended, ring),
        because=frozenset(seq for c in open_ for seq in c.seqs),
        only_exit=not waits and not ring and _waits_for_a_process(timeline, ended),
        threads=words.refs(timeline, (thread.tid for thread in threads)),
        stacks=compiling_stacks(timeline),
        remedy=_remedy(waits, ended),
    )
    return Outcome(found=[found])


def _remedy(waits: Sequence[LockWait], ended: Ended) -> Remedy | None:
    """What fits the locks that are involved; None: what fits the compile lock."""
    stood = [wait for wait in ended.waits if wait.what]
    if waits or any(wait.what == rings.COMPILE_LOCK for wait in stood):
        return None
    if not stood:  # nothing is known of who waited for what
        return None
    named = [wait for wait in stood if wait.read and wait.what.startswith("`")]
    return _OWN_LOCKS if named else _NO_LOCK


def _waits_for_a_process(timeline: Timeline, ended: Ended) -> bool:
    """Whether one of its threads waits for another process, of whose threads it is known too."""
    others = any(wait.pid != timeline.pid for wait in ended.waits)
    own = (wait.what for wait in ended.waits if wait.pid == timeline.pid)
    return others and any(what in _OF_A_PROCESS for what in own)


def _headline(
    timeline: Timeline, waits: Sequence[LockWait], ended: Ended, ring: Sequence[rings.Link]
) -> str:
    text = f"The program hung: nothing moved at the time limit of {ended.timeout_s:g} s"
    if ring and not any(link.compile for link in ring):
        return f"{text}, and {rings.in_words(ring)}."
    if not waits:
        stood = next((wait for wait in ended.waits if wait.read), None)
        if stood is None:
            return f"{text}."
        number = number_of(timeline, stood)
        who = timeline.name(number) if number else stood.thread
        return f"{text}, and `{who}` waited for {stood.what}."
    wait = waits[0]
    owner = holder(timeline, wait)
    held = waits_too = ""
    if owner is not None:
        held = f", held by `{timeline.name(owner)}`"
        its = (w for w in ended.waits if w.what and number_of(timeline, w) == owner)
        waits_too = next((f", which waited for {w.what}" for w in its), "")
    text += f", and `{timeline.name(wait.tid)}` waited for dynamo's compile lock"
    return f"{text}{held}{waits_too}."


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
