"""How a watched process ended, as the parent saw it: ``ended.json`` of a run folder."""

from pathlib import Path

import msgspec

from harness.child.privacy import mask, mask_argv
from harness.events.files import ENDED, read_whole, write_whole

ENDED_SCHEMA = 1


class ThreadWait(msgspec.Struct, frozen=True, kw_only=True):
    """What one thread stood in before the process was ended, read off its stack.

    Attributes:
        pid, tid, thread: whose; ``tid`` is the native thread id, 0 where only the child's own
            faulthandler spoke, which does not tell it.
        ident: what Python calls the thread, which is what faulthandler tells; 0: not known.
        what: what it waits for, such as ``an item of a queue``, or what the
            program calls the lock; empty: not known.
        read: ``what`` was read off the source line and not off the frame that waits.
        holds: what the ``with`` statements around the lines that it is in have entered, as the
            program calls it: the locks among them are held.
        function, file, line: the innermost frame of the program's own, or else the innermost one.
    """

    pid: int
    tid: int
    thread: str
    ident: int = 0
    what: str = ""
    read: bool = False
    holds: tuple[str, ...] = ()
    function: str = ""
    file: str = ""
    line: int = 0


class Unwatched(msgspec.Struct, frozen=True, kw_only=True):
    """A Python process below the program that the watch did not get into.

    Attributes:
        pid, command: its id and its command line, masked and cut.
        option: the option of Python's that kept the watch out; empty: its environment did.
        torch: it had torch loaded.
    """

    pid: int
    command: str
    option: str = ""
    torch: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the main process and what the parent did about it.

    Attributes:
        exit_code: the program's own exit code; None if a signal ended it.
        signal, signal_name: the signal that ended it, such as 11 and ``SIGSEGV``.
        deadline_hit: the time limit passed and the parent ended the program.
        idle_at_deadline: whether the process tree used next to no CPU and recorded nothing in the
            last two seconds before the deadline; None where the deadline was not reached or these
            were not seen.
        killed_from_outside: a signal that no crash raises (SIGKILL, SIGTERM, SIGHUP, ...) ended
            it and the parent did not send it, or the parent was told to end it (SIGTERM, SIGHUP),
            or the parent itself was killed.
        told_to_end: the signal by which the parent was told to end the program, such as
            ``SIGTERM``; empty if it was not.
        parent_killed: the parent was gone before the program's end was known, and its guardian
            wrote this; neither exit code nor signal are then known.
        sent: signals that the parent, or its guardian, sent to the program, in that order.
        stopped_on: why the parent ended the program before its end, as was asked of it.
        oom_kills: how many processes of the program's memory cgroup (or else of the machine, see
            ``oom_counter``) the kernel killed for want of memory while the program ran; None where
            no counter can be read.
        oom_counter: the file that counts them.
        interrupted: the parent was interrupted from the keyboard (SIGINT) and passed it on.
        wall_s: seconds from the start to the end of the main process.
        started: UTC, ISO 8601.
        command: the child's command line.
        stacks: before the parent ended it (at the deadline, or told to), every thread's stack as
            py-spy saw it, or else at the deadline as the child's own faulthandler wrote it; where
            there is none, why.
        waits: what each thread waited for, from the same stacks.
        fatal_stacks: what faulthandler wrote when the signal that ended it arrived; empty if none
            did or it could not write.
        stderr_tail: the end of what the program printed; empty if it was not captured.
        timeout_s: the deadline.
        disk_full: nothing could be written to the run folder when the program ended.
        leftovers: how many processes that the program had left behind were ended.
        unwatched: Python processes that the program started past the watch, as far as they lived
            long enough to be seen.
        guardian_failure: why nobody would have ended the program if the parent had been killed;
            empty if its guardian stood by to the end.
        child_failure: why the watch did not attach or stopped, if the child wrote that down.
        recordings: the recordings that the processes had left by then, by file name, each with its
            size in bytes; empty in folders that an older version wrote.
        block: what ended is a watched block inside of a process that goes on; ``exit_code`` is
            then 0 or, where an exception left it, 1.
        parent_version: version of the harness.
    """

    exit_code: int | None
    signal: int | None = None
    signal_name: str = ""
    deadline_hit: bool = False
    idle_at_deadline: bool | None = None
    killed_from_outside: bool = False
    interrupted: bool = False
    wall_s: float = 0.0
    started: str = ""
    command: list[str] = []
    told_to_end: str = ""
    parent_killed: bool = False
    sent: list[str] = []
    stopped_on: str = ""
    oom_kills: int | None = None
    oom_counter: str = ""
    stacks: str = ""
    waits: list[ThreadWait] = []
    fatal_stacks: str = ""
    stderr_tail: str = ""
    timeout_s: float = 0.0
    disk_full: bool = False
    leftovers: int = 0
    unwatched: list[Unwatched] = []
    child_failure: str = ""
    guardian_failure: str = ""
    recordings: dict[str, int] = {}
    block: bool = False
    parent_version: str = ""
    schema: int = ENDED_SCHEMA


def write_ended(folder: Path, ended: Ended) -> None:
    """Write ``ended.json``, masked, so that a reader sees all of it or none. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(_masked(ended)), indent=2).decode()
    write_whole(folder / ENDED, f"{text}\n")


def read_ended(folder: Path) -> Ended | None:
    """Read ``ended.json``; None if there is none. Raises OSError, msgspec.DecodeError."""
    try:
        raw = read_whole(folder / ENDED)
    except FileNotFoundError:
        return None
    return msgspec.json.decode(raw, type=Ended)


def _masked(ended: Ended) -> Ended:
    """Without the secrets that a command line or what a program printed may hold."""
    return msgspec.structs.replace(
        ended,
        command=mask_argv(ended.command),
        # py-spy begins with the command line, and names the threads.
        stacks=mask(ended.stacks),
        waits=[
            msgspec.structs.replace(wait, thread=mask(wait.thread), what=mask(wait.what))
            for wait in ended.waits
        ],
        fatal_stacks=mask(ended.fatal_stacks),
        stderr_tail=mask(ended.stderr_tail),
        child_failure=mask(ended.child_failure),
    )
