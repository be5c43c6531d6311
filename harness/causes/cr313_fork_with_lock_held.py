"""CR313: a process was forked while another thread compiled, and its own compile waits for ever."""

from collections.abc import Sequence

from harness.causes import words
from harness.causes.base import Explanation, Found, Outcome
from harness.statements import Note, Remedy, SharedState, Stack, Statement
from harness.timeline.model import Forked, LockWait
from harness.timeline.timeline import Timeline

EXPLANATION = Explanation(
    code="CR313",
    title="fork-with-compile-lock-held",
    what=(
        "A forked process (a DataLoader worker, `multiprocessing` with `fork`) stops for good at "
        "its first call of compiled code, and its parent waits for it."
    ),
    why=(
        "A fork copies dynamo's compile lock as it is. If another thread was compiling at that "
        "moment the copy is locked, and the thread that would release it does not exist in the "
        "forked process. Torch does not make the lock anew after a fork."
    ),
    evidence=(
        "The forked process recorded that another thread of its parent held the lock when it was "
        "forked, and waits for that lock to the end. Without such a wait it is a note."
    ),
    remedy=Remedy(
        text=(
            "Start worker processes by `spawn` or `forkserver`, or before any thread compiles; or "
            "call nothing in them that compiles."
        ),
        snippet='DataLoader(data, num_workers=2, multiprocessing_context="forkserver")',
    ),
    versions="all",
    upstream=("pytorch/pytorch#121197",),
    needs=("forks", "lock", "compiles"),
)


def find(timeline: Timeline, earlier: Sequence[Found]) -> Outcome:  # noqa: ARG001 - a root by itself
    """Waits of this process, a forked one, for a lock that nobody can release."""
    fork = timeline.forked
    if fork is None:
        return Outcome()
    waits = [wait for wait in timeline.lock_waits if wait.t1 is None and wait.owner == fork.owner]
    if not waits:
        return Outcome(notes=[_note(timeline, fork)])
    return Outcome(found=[_finding(timeline, fork, waits)])


def _finding(timeline: Timeline, fork: Forked, waits: Sequence[LockWait]) -> Found:
    wait = waits[0]
    who, owner = f"`{timeline.name(wait.tid)}`", _owner(fork)
    return Found(
        code="CR313",
        statements=(
            _forked(timeline, fork),
            Statement(
                f"{who} has waited for `{wait.lock}` since {timeline.seconds(wait.t0):.3f} s, to "
                f"the end of its recording; as its owner the lock has {owner}, which this process "
                "does not have.",
                "observed",
                words.seqs(wait.seqs),
            ),
        ),
        headline=(
            f"Process {timeline.pid} hung at its first compile: it was forked while {owner} of "
            f"process {fork.parent} held dynamo's compile lock, and nobody can release its copy."
        ),
        ends=True,
        threads=words.refs(timeline, (w.tid for w in waits)),
        stacks=(
            Stack(
                thread=words.ref(timeline, fork.tid),
                title="was forked",
                frames=fork.where,
                evidence=(fork.seq,),
            ),
            words.stack(
                timeline, wait.tid, "waited for the compile lock", wait.where, wait.seqs[0]
            ),
        ),
        shared_state=SharedState(
            name=wait.lock,
            writer=f"{owner} of process {fork.parent}, which held it at the fork",
            reader=f"{who} of process {timeline.pid}, in which nobody can release it",
        ),
    )


def _forked(timeline: Timeline, fork: Forked) -> Statement:
    doing = ", inside a compile," if fork.compiling else ""
    text = (
        f"Process {timeline.pid} was forked by thread {fork.by} of process {fork.parent} while "
        f"{_owner(fork)}{doing} held dynamo's compile lock."
    )
    return Statement(text, "observed", (fork.seq,))


def _note(timeline: Timeline, fork: Forked) -> Note:
    text = (
        f"Process {timeline.pid} was forked while {_owner(fork)} of process {fork.parent} held "
        "dynamo's compile lock: a compile in it would wait for ever. It was not seen to compile."
    )
    return Note(text=text, code="CR313", pid=timeline.pid, evidence=(fork.seq,))


def _owner(fork: Forked) -> str:
    return f"`{fork.owner_name}`" if fork.owner_name else f"thread {fork.owner}"
