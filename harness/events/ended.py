"""How a watched process ended, as the parent saw it: ``ended.json`` of a run folder."""

from pathlib import Path

import msgspec

from harness.events.files import ENDED, write_whole

ENDED_SCHEMA = 1


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The end of the main process and what the parent did about it.

    Attributes:
        exit_code: the program's own exit code; None if a signal ended it.
        signal, signal_name: the signal that ended it, such as 11 and ``SIGSEGV``.
        deadline_hit: the time limit passed and the parent ended the program.
        idle_at_deadline: whether the process tree used next to no CPU and recorded nothing in the
            last two seconds before the deadline; None where the deadline was not reached.
        killed_from_outside: a signal that no crash raises (SIGKILL, SIGTERM, SIGHUP, ...) ended
            it and the parent did not send it, or the parent was told to end it (SIGTERM, SIGHUP).
        interrupted: the parent was interrupted from the keyboard (SIGINT) and passed it on.
        wall_s: seconds from the start to the end of the main process.
        started: UTC, ISO 8601.
        command: the child's command line.
        stacks: at the deadline, every thread's stack as py-spy saw it, or else as the child's own
            faulthandler wrote it; where there is none, why.
        fatal_stacks: what faulthandler wrote when a fatal signal arrived; empty otherwise.
        stderr_tail: the end of what the program printed; empty if it was not captured.
        timeout_s: the deadline.
        disk_full: the run folder's disk had no space left when the program ended.
        leftovers: how many processes that the program had left behind were ended.
        child_failure: why the watch did not attach or stopped, if the child wrote that down.
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
    stacks: str = ""
    fatal_stacks: str = ""
    stderr_tail: str = ""
    timeout_s: float = 0.0
    disk_full: bool = False
    leftovers: int = 0
    child_failure: str = ""
    parent_version: str = ""
    schema: int = ENDED_SCHEMA


def write_ended(folder: Path, ended: Ended) -> None:
    """Write ``ended.json`` so that a reader sees all of it or none. Raises OSError."""
    text = msgspec.json.format(msgspec.json.encode(ended), indent=2).decode()
    write_whole(folder / ENDED, f"{text}\n")


def read_ended(folder: Path) -> Ended | None:
    """Read ``ended.json``; None if there is none. Raises OSError, msgspec.DecodeError."""
    try:
        raw = (folder / ENDED).read_bytes()
    except FileNotFoundError:
        return None
    return msgspec.json.decode(raw, type=Ended)
