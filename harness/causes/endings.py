"""How the program ended, as causes read it, and what its threads were doing then."""

import signal
from collections.abc import Sequence

from harness.causes import words
from harness.events.ended import Ended, ThreadWait
from harness.statements import Stack, Statement
from harness.timeline.model import LockWait, Thread
from harness.timeline.timeline import Timeline

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
"""Signals that code below Python raises when it crashes or gives up."""

OUTSIDE = {
    int(number): number.name
    for number in (
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGXCPU,
    )
}
"""Signals that people, schedulers, terminals and the kernel send."""

_MAX_WAITS = 16


def crash_signal(timeline: Timeline) -> int | None:
    """The signal of a crash that ended the process, also where a shell in between says 128 + n."""
    ended = timeline.ended
    if ended is None or ended.killed_from_outside or _ended_by_us(ended):
        return None
    if ended.signal is not None:
        return ended.signal if ended.signal in CRASHES else None
    return _told_by_exit_code(timeline, ended, CRASHES)


def outside_signal(timeline: Timeline) -> int | None:
    """The signal from outside that ended the process, to judge by its exit code of 128 + n.

    A shell or another launcher between the parent and the program says it so.
    """
    ended = timeline.ended
    if ended is None or ended.killed_from_outside or ended.interrupted or _ended_by_us(ended):
        return None
    return _told_by_exit_code(timeline, ended, OUTSIDE)


def killed_from_outside(timeline: Timeline) -> bool:
    """Whether something outside ended the process: not itself, not the harness of its own will."""
    ended = timeline.ended
    if ended is None:
        return False
    return ended.killed_from_outside or outside_signal(timeline) is not None


def exited_by_itself(timeline: Timeline) -> bool:
    """Whether the program left with an exit code other than 0 that tells of no signal."""
    ended = timeline.ended
    return (
        ended is not None
        and bool(ended.exit_code)
        and not ended.interrupted
        and not _ended_by_us(ended)
        and not killed_from_outside(timeline)
        and crash_signal(timeline) is None
    )


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
        # Its start is what another thread did, and may be recorded after its own first steps.
        rungs = [rung for rung in rungs if rung.what != "started"] or rungs
        if not rungs:
            continue
        last = next((rung for rung in reversed(rungs) if rung.span and rung.t1 is None), rungs[-1])
        tense = "was in" if last.span and last.t1 is None else "was last seen at"
        detail = f" {last.detail}" if last.detail else ""
        at = f"at {timeline.seconds(last.t0):.3f} s"
        if last.span:
            ended = last.t1 is not None and f"ended at {timeline.seconds(last.t1):.3f} s"
            at = ended or f"since {timeline.seconds(last.t0):.3f} s"
        text = f"`{thread.name}` {tense}: {last.what}{detail} ({at})."
        found.append(Statement(text, "observed", (last.seq,)))
    return found


def compiling(timeline: Timeline) -> str:
    """``while thread `a` compiled `f```; empty if no compile was under way at the end."""
    open_ = timeline.open_compiles()
    if not open_:
        return ""
    who = words.object_(timeline, (compile_.tid for compile_ in open_))
    return f"while {who} compiled {words.codes(compile_.code for compile_ in open_)}"


def compiling_stacks(timeline: Timeline) -> tuple[Stack, ...]:
    """Where the first two compiles were begun that were under way at the end."""
    return tuple(
        words.stack(timeline, c.tid, "was compiling", c.where, c.seqs[0])
        for c in timeline.open_compiles()[:2]
    )


def holder(timeline: Timeline, wait: LockWait) -> int | None:
    """Who held the compile lock at the end, for which a thread had not ceased to wait.

    The owner that was noted when the wait began may have given it up since: then it is whoever was
    inside a compile.
    """
    inside = [compile_.on for compile_ in timeline.open_compiles() if compile_.on != wait.tid]
    return wait.owner if wait.owner in inside or not inside else inside[-1]


def stacks_kept(ended: Ended) -> list[Statement]:
    """Where the stacks are that were written when the process was ended."""
    if not ended.fatal_stacks and not ended.waits:
        return []
    text = "The stacks that could be taken at that moment are kept with the run's end."
    return [Statement(text, "observed")]


def open_waits(timeline: Timeline) -> list[LockWait]:
    """Waits for the compile lock that had not ended."""
    return [wait for wait in timeline.lock_waits if wait.t1 is None]


def waiting(timeline: Timeline, ended: Ended) -> list[Statement]:
    """Who waited for what: first for the compile lock, as recorded, then as the stacks show it."""
    waits = open_waits(timeline)
    stood = {number: wait for wait in ended.waits if (number := number_of(timeline, wait))}
    statements = [_recorded(timeline, wait, stood.get(wait.tid)) for wait in waits]
    recorded = {id(stood[wait.tid]) for wait in waits if wait.tid in stood}
    # Those that stand in the program's own locks first: the others wait for them.
    others = [wait for wait in ended.waits if wait.what and id(wait) not in recorded]
    others.sort(key=lambda wait: not wait.read)
    statements += [_stood(timeline, wait) for wait in others[:_MAX_WAITS]]
    if len(others) > _MAX_WAITS:
        more = words.count(len(others) - _MAX_WAITS, "more thread")
        statements.append(Statement(f"{more} waited for something too.", "observed"))
    return statements


def _recorded(timeline: Timeline, wait: LockWait, stood: ThreadWait | None) -> Statement:
    owner = f"`{timeline.name(wait.owner)}`" if wait.owner is not None else "an unknown thread"
    text = (
        f"`{timeline.name(wait.tid)}` waited for `{wait.lock}`{_place(stood)} since "
        f"{timeline.seconds(wait.t0):.3f} s; {owner} held it then."
    )
    return Statement(text, "observed", words.seqs(wait.seqs))


def _stood(timeline: Timeline, wait: ThreadWait) -> Statement:
    """A thread that waits, by its stack; ``with lock`` leaves a source line and no frame."""
    number = number_of(timeline, wait)
    name = timeline.name(number) if number else wait.thread or f"thread {wait.tid}"
    of = "" if wait.pid == timeline.pid else f" of process {wait.pid}"
    compiles = number and any(compile_.on == number for compile_ in timeline.open_compiles())
    held = ", with dynamo's compile lock held" if compiles else ""
    text = f"`{name}`{of} waited for {wait.what}{_place(wait)}{held}."
    return Statement(text, "inferred" if wait.read or held else "observed")


def number_of(timeline: Timeline, wait: ThreadWait) -> int:
    """The thread that had the id last; 0 if it is another process's or not known."""
    if wait.pid != timeline.pid:
        return 0
    if not wait.tid:
        return thread_of(timeline, wait.ident)
    return max(
        (n for n, thread in timeline.threads.items() if thread.native == wait.tid), default=0
    )


def thread_of(timeline: Timeline, ident: int) -> int:
    """The thread that Python called so at the end; 0 if none is recorded.

    The system gives the id of a thread that has ended to a new one.
    """
    alive = [
        thread
        for thread in timeline.threads.values()
        if ident and thread.ident == ident and not thread.ended
    ]
    return max(alive, key=lambda thread: thread.t0).tid if alive else 0


def _place(wait: ThreadWait | None) -> str:
    if wait is None or not wait.function:
        return ""
    return f" in `{wait.function}` ({wait.file}:{wait.line})"


def _ended_by_us(ended: Ended) -> bool:
    return ended.deadline_hit or bool(ended.stopped_on)


def _told_by_exit_code(timeline: Timeline, ended: Ended, signals: dict[int, str]) -> int | None:
    number = (ended.exit_code or 0) - 128
    return number if number in signals and timeline.end_seq is None else None
