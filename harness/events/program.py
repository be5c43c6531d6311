"""The payloads of events about the program and its threads: what ran, began, failed, ended."""

from typing import Literal

import msgspec

from harness.events.values import ErrorLink, Int


class HeaderData(msgspec.Struct, frozen=True, kw_only=True):
    """Versions are what is installed for the child's interpreter; empty if not found.

    ``argv`` and ``env`` hold no secrets: they are masked. ``home`` is the user's home folder, which
    reports shorten. ``made_from``: a watched program, or texts that one left behind.
    ``in_process``: the watch began in a program that ran already. ``rank``: of a distributed run,
    as its launcher says (RANK); empty if none does.
    """

    schema: Int
    harness: str
    python: str
    torch: str
    triton: str
    cuda: str
    platform: str
    cpus: Int
    argv: tuple[str, ...]
    started_unix: float
    compile_detail: bool
    disabled_probes: tuple[str, ...] = ()
    cache_dir: str = ""
    cache_state: Literal["cold", "kept"] = "cold"
    job_id: str = ""
    rank: str = ""
    memory_cap: Int | None = None
    env: dict[str, str] = {}
    home: str = ""
    made_from: Literal["watch", "text"] = "watch"
    in_process: bool = False


class ProbeData(msgspec.Struct, frozen=True, kw_only=True):
    """``live``, or why not. ``idle``: the module that it patches was never imported."""

    name: str
    state: Literal["live", "missing", "failed", "disabled", "idle", "conflict"]
    reason: str = ""


class GpuData(msgspec.Struct, frozen=True, kw_only=True):
    """The GPUs that torch sees, once the program has initialised CUDA."""

    names: tuple[str, ...]


class ThreadStartData(msgspec.Struct, frozen=True, kw_only=True):
    """``child_tid`` was started by the event's own thread; ``where`` is the creation stack.

    ``number``: the so manieth thread that the program started, from 1; 0: not known.
    ``child_ident``: what Python and faulthandler call the new thread; 0: not known.
    """

    child_tid: Int
    name: str
    daemon: bool = False
    number: Int = 0
    child_ident: Int = 0


class ThreadErrorData(msgspec.Struct, frozen=True, kw_only=True):
    """An exception that ended a thread, the program or a future's call.

    ``via``: ``main`` (the program's uncaught exception), ``thread`` (a thread's), ``future`` (kept
    in a ``concurrent.futures.Future``; ``future`` is its number). ``chain[0]`` is the exception.
    Where it is one that a wrong current device can make: ``current_device`` is the thread's index
    of it, once CUDA is initialised, and ``devices`` are those of the tensors in its frames.
    """

    via: Literal["main", "thread", "future"]
    chain: tuple[ErrorLink, ...]
    future: Int | None = None
    current_device: Int | None = None
    devices: tuple[str, ...] = ()


class FutureReadData(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody asked the future for its result or exception, so its error was seen."""

    future: Int


class StepData(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of the event's thread."""

    step: Int
    tokens: Int = 0
    seconds: float = 0.0


class PhaseData(msgspec.Struct, frozen=True, kw_only=True):
    """A phase's name, as the workload gave it."""

    name: str


class LeftOutData(msgspec.Struct, frozen=True, kw_only=True):
    """So many events of the point ``of`` were not written by now, since there are so many."""

    of: str
    count: Int


class EndData(msgspec.Struct, frozen=True, kw_only=True):
    """The program's end.

    Attributes:
        exit_text: what it left with, if that was a text: ``sys.exit("no data")``.
        under_way: numbers of events that other threads had not written by then. Some never are: a
            daemon thread is not run again.
    """

    exit_text: str = ""
    under_way: tuple[Int, ...] = ()


class SaidData(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a text that says something by its words alone."""

    text: str
