"""CR307: a hang in which dynamo's compile lock is one of the locks that are taken crosswise."""

from collections.abc import Sequence

from harness.causes import rings, words
from harness.causes.base import Explanation, Found, Outcome
from harness.causes.endings import (
    compiling_stacks,
    holder,
    number_of,
    open_waits,
    stacks_kept,
    waiting,
)
from harness.events.ended import Ended, ThreadWait
from harness.statements import Remedy, SharedState, Stack, Statement
from harness.timeline.model import Compile, LockWait
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR307",
    title="lock-order-hang",
    what=(
        "The program stops for good: a thread that compiles waits for a lock of the program's, and "
        "the thread that has that lock waits for the compile to end."
    ),
    why=(
        "Dynamo compiles under one lock for the whole process, "
        "`torch._dynamo.convert_frame.compile_lock`. Whatever runs within a compile - a custom "
        "backend, a pass, a callback, a tensor subclass - runs with that lock held. If it takes a "
        "lock of the program's, another thread that holds that one and calls anything that must "
        "compile closes the ring."
    ),
    evidence=(
        "At the time limit the program was idle; a thread waited for the compile lock, and its "
        "owner, inside a compile, for a lock of the program's. Who holds that one is read off the "
        "`with` statements and `acquire` calls that each thread is in; where they do not tell, it "
        "is inferred from there being nobody else."
    ),
    remedy=Remedy(
        text=(
            "Take the locks in one order. Make the first call of compiled code without holding any "
            "lock that a backend or a callback takes, or take that lock around every call that may "
            "compile, so that it always comes first."
        ),
        snippet=(
            "def backend(gm, inputs):               # runs with dynamo's compile lock held\n"
            "    return gm.forward                  # takes no lock of the program's\n\n"
            "step(example)                          # compiled before any lock is taken\n"
            "with lock:\n"
            "    step(batch)"
        ),
    ),
    versions="all",
    needs=("lock", "compiles"),
    # A cold start has this hang as well once it is warmed under the lock: the order is the root.
    may_follow=("CR1", "CR201", "CR202", "CR203", "CR204", "CR205", "CR206", "CR207"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - chains by seq
    """A hang around the compile lock."""
    ended = timeline.ended
    if ended is None or not ended.deadline_hit or not ended.idle_at_deadline:
        return Outcome()
    for wait in open_waits(timeline):
        owner = holder(timeline, wait)
        compile_ = next((c for c in timeline.open_compiles() if c.on == owner), None)
        stood = next((w for w in ended.waits if number_of(timeline, w) == owner), None)
        if owner is None or compile_ is None or stood is None or not rings.is_named(stood):
            continue
        return Outcome(found=[_finding(timeline, ended, wait, compile_, stood)])
    return Outcome()


def _finding(
    timeline: Timeline, ended: Ended, wait: LockWait, compile_: Compile, stood: ThreadWait
) -> Found:
    ring = rings.ring(timeline, ended)
    ring = ring if any(link.compile for link in ring) else ()
    waiter, owner = timeline.name(wait.tid), timeline.name(compile_.on)
    lock = stood.what.strip("`")
    held_by = f"`{waiter}`" if not ring else f"`{_holder(ring, lock)}`"
    statements = (
        Statement(
            f"After {ended.timeout_s:g} s the program neither used the CPU nor recorded anything.",
            "observed",
        ),
        _of_owner(timeline, compile_, stood),
        rings.statement(ring) if ring else _only_one_left(lock, owner, waiter),
        *waiting(timeline, ended),
        *stacks_kept(ended),
    )
    return Found(
        code="CR307",
        statements=statements,
        headline=(
            f"The program hung over two locks taken crosswise: `{owner}` held dynamo's compile "
            f"lock while it compiled `{compile_.code.name}` and waited for `{lock}`; {held_by} "
            f"held `{lock}` and waited for the compile lock."
        ),
        because=frozenset(compile_.seqs),
        ends=True,
        threads=words.refs(timeline, (compile_.on, wait.tid)),
        stacks=(*compiling_stacks(timeline)[:1], _waiting_stack(timeline, wait)),
        shared_state=SharedState(
            name=f"torch._dynamo.convert_frame.compile_lock and {lock}",
            writer=f"`{owner}` holds the compile lock and wants `{lock}`",
            reader=f"{held_by} holds `{lock}` and wants the compile lock",
        ),
    )


def _of_owner(timeline: Timeline, compile_: Compile, stood: ThreadWait) -> Statement:
    place = f"`{stood.function}` ({stood.file}:{stood.line})"
    text = (
        f"`{timeline.name(compile_.on)}` was inside the compile of `{compile_.code.name}`, with "
        f"dynamo's compile lock held, and waited for {stood.what} in {place}."
    )
    return Statement(text, "inferred", words.seqs(compile_.seqs))


def _only_one_left(lock: str, owner: str, waiter: str) -> Statement:
    text = (
        f"Who holds `{lock}` is not to be read off the source. `{owner}` waits for it and "
        f"`{waiter}` for the compile to end, and nobody moves: whoever has it needs the compile "
        "lock too."
    )
    return Statement(text, "inferred")


def _holder(ring: Sequence[rings.Link], lock: str) -> str:
    """Who holds what the thread before it in the ring waits for."""
    place = next(n for n, link in enumerate(ring) if link.what == lock)
    return ring[(place + 1) % len(ring)].who


def _waiting_stack(timeline: Timeline, wait: LockWait) -> Stack:
    return words.stack(timeline, wait.tid, "waited for the compile lock", wait.where, wait.seqs[0])
