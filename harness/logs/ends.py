"""How a process ended, and what its threads stood in, as far as texts tell it."""

import signal as signals

from harness.events.ended import Ended, ThreadWait
from harness.events.values import Frame
from harness.logs.facts import Dump, DumpedThread, Function, Signalled
from harness.logs.keeping import Process
from harness.supervise import waits

_FATAL = {
    "Segmentation fault": signals.SIGSEGV,
    "Aborted": signals.SIGABRT,
    "Bus error": signals.SIGBUS,
    "Illegal instruction": signals.SIGILL,
    "Floating point exception": signals.SIGFPE,
    "Floating-point exception": signals.SIGFPE,
}
_CONVERT = "torch/_dynamo/convert_frame.py"
_COMPILING = frozenset({"_compile", "_compile_inner", "compile_inner"})
_FROM_OUTSIDE = frozenset({signals.SIGKILL, signals.SIGTERM, signals.SIGHUP})


def ended_of(process: Process, pid: int) -> Ended | None:
    """The end of a process; None where the texts do not tell anything of it."""
    dumps = [fact for fact in process.facts if isinstance(fact, Dump)]
    fatal = next((dump for dump in dumps if _fatal(dump)), None)
    told = next((fact for fact in process.facts if isinstance(fact, Signalled)), None)
    number = _fatal(fatal) if fatal is not None else (told.signal if told is not None else 0)
    alive = next((dump for dump in reversed(dumps) if not dump.fatal), None)
    if not number and alive is None:
        return None
    return Ended(
        exit_code=None,
        signal=number or None,
        signal_name=_name(number),
        killed_from_outside=number in _FROM_OUTSIDE,
        fatal_stacks=fatal.text if fatal is not None else "",
        stacks=alive.text if alive is not None else "",
        waits=_waits(alive, pid) if alive is not None else [],
    )


def _fatal(dump: Dump) -> int:
    return next((int(n) for text, n in _FATAL.items() if dump.fatal.startswith(text)), 0)


def _name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return ""


def _waits(dump: Dump, pid: int) -> list[ThreadWait]:
    """What each thread waited for that did not run; of the compile lock by dynamo's own frame."""
    held = compile_lock(dump)
    waiting = {id(thread) for thread in held[2]} if held else set()
    found = []
    for thread in dump.threads:
        if thread.active or not thread.frames:
            continue
        frames = [waits.Frame(f.function, f.file, f.line) for f in thread.frames]
        wait = waits.wait_of(pid, thread.tid, thread.name, frames)
        if id(thread) in waiting:
            own = next((f for f in thread.frames if f.user), thread.frames[0])
            wait = ThreadWait(
                pid=pid, tid=thread.tid, thread=thread.name, what="dynamo's compile lock",
                function=own.function, file=own.file, line=own.line,
            )  # fmt: skip
        found.append(wait)
    return found


def thread_ids(process: Process) -> dict[str, int]:
    """Native ids of threads by their names, where a dump tells both and no two have the name."""
    found: dict[str, int] = {}
    for fact in process.facts:
        if isinstance(fact, Dump):
            names = [thread.name for thread in fact.threads]
            found |= {t.name: t.tid for t in fact.threads if t.tid and names.count(t.name) == 1}
    return found


def compile_lock(dump: Dump) -> tuple[DumpedThread, Function, list[DumpedThread]] | None:
    """Who is inside a dynamo compile, of what, and who waits for its lock; None: nobody waits.

    The lock is taken by a ``with`` in ``torch/_dynamo/convert_frame.py`` before ``_compile`` is
    called, which leaves no frame of its own: whoever's innermost frame is there waits.
    """
    inside = [t for t in dump.threads if any(_is_compile(frame) for frame in t.frames)]
    if not inside:
        return None
    waiting = [t for t in dump.threads if t not in inside and _at_the_lock(t)]
    if not waiting:
        return None
    own = next((f for f in _outside(inside[0].frames) if f.user), None)
    name = f"what {own.function} called" if own else "a function"
    file, line = (own.file, own.line) if own else ("", 0)
    return inside[0], Function(name=name, file=file, line=line), waiting


def _is_compile(frame: Frame) -> bool:
    return frame.file.endswith(_CONVERT) and frame.function.rpartition(".")[2] in _COMPILING


def _at_the_lock(thread: DumpedThread) -> bool:
    inner = thread.frames[0] if thread.frames else None
    return inner is not None and not thread.active and inner.file.endswith(_CONVERT)


def _outside(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames outside of the compile."""
    at = next(n for n, frame in enumerate(frames) if _is_compile(frame))
    return frames[at:]
