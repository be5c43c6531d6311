"""What a thread waits for, read off its stack.

Python's own waits end in a known frame of the standard library. A lock's ``acquire`` and ``with``
are C and leave no frame, so there the source line says which lock it is.
"""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.child import boot
from harness.events.ended import ThreadWait
from harness.supervise.held import held_in

_CHILD = str(Path(boot.__file__).parent)
_MAX_SOURCE = 160
_MAX_FILE = 4 << 20
_MAX_FRAMES = 32


class Frame(msgspec.Struct):
    """A frame as py-spy names it; ``name`` is qualified from Python 3.11 on."""

    name: str
    filename: str
    line: int
    short_filename: str | None = None


_COMPILE_LOCK = "dynamo's compile lock"
# By the file's name below its library's folder, then by the function: qualified, or (faulthandler)
# its last part; "*" is any.
_KNOWN: dict[str, dict[str, str]] = {
    f"{_CHILD}/probes/lock.py": {"acquire": _COMPILE_LOCK, "_wait": _COMPILE_LOCK},
    "/threading.py": {
        "join": "the end of a thread",
        "_wait_for_tstate_lock": "the end of a thread",
        "_shutdown": "the end of every thread that is not a daemon",
        "Condition.wait": "a condition",
        "Condition.wait_for": "a condition",
        "Event.wait": "an event",
        "Semaphore.acquire": "a semaphore",
        "Barrier.wait": "the other threads at a barrier",
        "Barrier._wait": "the other threads at a barrier",
        "wait": "a condition, an event or a barrier",
        "wait_for": "a condition",
    },
    "/queue.py": {
        "get": "an item of a queue",
        "put": "room in a queue",
        "join": "the work on a queue to be done",
    },
    "/concurrent/futures/_base.py": {
        "result": "a future's result",
        "exception": "a future's result",
        "wait": "futures",
        "as_completed": "futures",
        "result_iterator": "a future's result",
    },
    "/concurrent/futures/thread.py": {
        "_worker": "its executor's next job",
        "shutdown": "the end of an executor's threads",
    },
    "/subprocess.py": dict.fromkeys(
        ("wait", "_wait", "_try_wait", "communicate", "_communicate"), "another process's end"
    ),
    "/multiprocessing/popen_fork.py": {"poll": "another process's end"},
    "/multiprocessing/connection.py": dict.fromkeys(
        ("_recv", "recv", "recv_bytes", "_recv_bytes", "wait", "poll"), "word from another process"
    ),
    "/multiprocessing/synchronize.py": {
        "__enter__": "a lock between processes",
        "wait": "another process",
    },
    "/selectors.py": {"select": "input or output"},
    "/socket.py": dict.fromkeys(("accept", "readinto"), "the network"),
    "/asyncio/base_events.py": {"_run_once": "its event loop's next event"},
    "<frozen importlib._bootstrap>": dict.fromkeys(
        ("acquire", "__enter__", "_lock_unlock_module"), "the lock of a module being imported"
    ),
    "/torch/autograd/graph.py": {"*": "a backward pass in autograd's engine"},
    "/torch/cuda/__init__.py": {"synchronize": "the GPU"},
    "/torch/distributed/distributed_c10d.py": dict.fromkeys(
        ("barrier", "all_reduce", "all_gather", "broadcast", "recv"), "the other ranks"
    ),
}
_ACQUIRE = re.compile(r"([\w.\[\]'\"]+)\.acquire\(")
_WITH = re.compile(r"with\s+(?:\(\s*)?([\w.\[\]'\"]+)\s*(?:as\s+\w+\s*)?[:,)]")
_SLEEP = re.compile(r"\bsleep\(")
_GET = re.compile(r"([\w.\[\]'\"]+)\.(get|put|recv|wait|join|read|result)\(")

_LIBRARY = re.compile(r".*/lib(?:64)?/python3[^/]*(?=/)(?:/(?:site|dist)-packages(?=/torch/))?")

_FAULT_THREAD = re.compile(r"(?:Current t|T)hread (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call")
_FAULT_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def wait_of(pid: int, tid: int, thread: str, frames: Sequence[Frame]) -> ThreadWait:
    """Say what a thread that does not run waits for.

    Args:
        pid: its process.
        tid: native thread id.
        thread: its name.
        frames: its stack, innermost first; at least one.
    """
    what = _known(frames)
    read = "" if what else _read_off(_source(frames[0]))
    own = next((frame for frame in frames if not _library(frame.filename)), frames[0])
    return ThreadWait(
        pid=pid,
        tid=tid,
        thread=thread,
        what=what or read,
        read=bool(read),
        holds=_held(frames) if what or read else (),
        function=own.name,
        file=own.filename,
        line=own.line,
    )


def _held(frames: Sequence[Frame]) -> tuple[str, ...]:
    """What the program's own frames hold, the innermost ones' first."""
    own = [frame for frame in frames if not _library(frame.filename)][:_MAX_FRAMES]
    held = (name for frame in own for name in held_in(frame.filename, frame.line, frame.name))
    return tuple(dict.fromkeys(held))


def waits_of_faults(text: str, pid: int) -> list[ThreadWait]:
    """What the threads in a text of faulthandler's wait for; it has no native thread ids.

    What it tells instead is each thread's ``ident``. The first thread is the watchdog's own where
    it has no frames.
    """
    waits: list[ThreadWait] = []
    name, ident, frames = "", 0, list[Frame]()

    def close() -> None:
        if frames:
            wait = wait_of(pid, 0, name, frames)
            waits.append(msgspec.structs.replace(wait, ident=ident))

    for line in text.splitlines():
        if heading := _FAULT_THREAD.match(line):
            close()
            name, ident, frames = heading[2] or heading[1], int(heading[1], 16), []
        elif frame := _FAULT_FRAME.match(line):
            frames.append(Frame(frame[3], frame[1], int(frame[2])))
    close()
    return waits


def _known(frames: Sequence[Frame]) -> str:
    """What the innermost frames of libraries wait for: the outermost of them says it best."""
    what = ""
    for frame in frames:
        table = _KNOWN.get(_in_library(frame.filename))
        if table is None:
            break
        last = frame.name.rpartition(".")[2]
        what = table.get(frame.name) or table.get(last) or what or table.get("*", "")
    return what


def _read_off(source: str) -> str:
    if match := _ACQUIRE.search(source) or _WITH.match(source):
        return f"`{match[1]}`"
    if _SLEEP.search(source):
        return "a sleep to end"
    if match := _GET.search(source):
        return f"`{match[1]}.{match[2]}`"
    return ""


def _in_library(file: str) -> str:
    """A file's name below the folder of Python's library or of packages; others as they are.

    A program has a ``queue.py`` of its own often enough.
    """
    folder = _LIBRARY.match(file)
    return file[folder.end() :] if folder else file


def _library(file: str) -> bool:
    """Whether a file is none of the program's: Python's, a package's, or the watch's."""
    return file.startswith(("<frozen ", _CHILD)) or bool(
        re.search(r"/lib/python3[^/]*/|/(?:site|dist)-packages/", file)
    )


def _source(frame: Frame) -> str:
    try:
        path = Path(frame.filename)
        if not path.is_file() or path.stat().st_size > _MAX_FILE:
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        return lines[frame.line - 1].strip()[:_MAX_SOURCE]
    except (OSError, IndexError, ValueError):
        return ""
