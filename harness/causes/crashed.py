"""Where a crash below Python happened: the thread and the Python frames that faulthandler wrote."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.causes import words
from harness.causes.endings import thread_of
from harness.events.values import Frame
from harness.statements import Certainty, Stack, Statement, ThreadRef
from harness.timeline import frames
from harness.timeline.timeline import Timeline

# CPython's Modules/faulthandler.c and Python/traceback.c. Newer versions add the thread's name.
_THREAD = re.compile(r"Current thread (0x[0-9a-f]+)(?: \[(.*)\])? \(most recent call")
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_MAX_FRAMES = 64


@dataclass(frozen=True)
class Crash:
    """The thread that crashed, and its stack, innermost call first.

    ``tid`` is None where it is not known which of the recorded threads it was; ``sure``: its id,
    its name, or that there was no other one, says so, and not only what it was doing.
    """

    tid: int | None
    sure: bool
    frames: tuple[Frame, ...]

    @property
    def own(self) -> Frame | None:
        """The innermost frame of the program's."""
        return next((frame for frame in self.frames if frame.user), None)


def crashed(timeline: Timeline) -> Crash | None:
    """The crash, where faulthandler could write down the Python stack of its thread."""
    text = timeline.ended.fatal_stacks if timeline.ended else ""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if _THREAD.match(line)), None)
    if start is None:
        return None
    found: list[Frame] = []
    for line in lines[start + 1 :][:_MAX_FRAMES]:
        match = _FRAME.match(line)
        if match is None:
            break
        found.append(frames.of_dump(match[1], int(match[2][:9]), match[3]))
    found = [frame for frame in found if not frames.is_watch(frame)]
    if not found:
        return None
    heading = _THREAD.match(lines[start])
    ident, name = (int(heading[1], 16), heading[2] or "") if heading else (0, "")
    known = thread_of(timeline, ident)
    tid, sure = (known, True) if known else _thread(timeline, name, found)
    return Crash(tid, sure, tuple(found))


def statement(timeline: Timeline, crash: Crash) -> Statement:
    """Where it crashed."""
    text = f"{_who(timeline, crash)} crashed {place(crash)}."
    known: Certainty = "observed" if crash.sure or crash.tid is None else "inferred"
    return Statement(words.begin(text), known)


def place(crash: Crash, *, short: bool = False) -> str:
    """``in `string_at` (ctypes/__init__.py:519), called from `backend` (train.py:10)``.

    ``short``: of a file its last folder and its name only.
    """
    inner, own = crash.frames[0], crash.own
    text = f"in `{inner.function}` ({_line(inner, short=short)})"
    if own is None or own is inner:
        return text
    return f"{text}, called from `{own.function}` ({_line(own, short=short)})"


def _line(frame: Frame, *, short: bool) -> str:
    file = "/".join(frame.file.split("/")[-2:]) if short else frame.file
    return f"{file}:{frame.line}"


def stack(timeline: Timeline, crash: Crash) -> Stack:
    """Its stack, to be shown."""
    if crash.tid is not None:
        return words.stack(timeline, crash.tid, "crashed", crash.frames, 0)
    thread = ThreadRef(tid=0, name="the thread that crashed", pid=timeline.pid)
    return Stack(thread=thread, title="crashed", frames=crash.frames)


def _who(timeline: Timeline, crash: Crash) -> str:
    if crash.tid is None:
        return "a thread"
    return f"`{timeline.name(crash.tid)}`"


def _thread(timeline: Timeline, name: str, found: Sequence[Frame]) -> tuple[int | None, bool]:
    """Which recorded thread it was: by its name, by there being one, by what it compiled."""
    alive = [thread for thread in timeline.threads.values() if not thread.ended]
    named = [thread.tid for thread in alive if name and thread.name == name]
    if len(named) == 1:
        return named[0], True
    if len(alive) == 1:
        return alive[0].tid, True
    places = {(frame.file, frame.function) for frame in found if frame.user}
    compiling = {
        compile_.on
        for compile_ in timeline.open_compiles()
        if any(frame.user and (frame.file, frame.function) in places for frame in compile_.where)
    }
    inside = any(frames.is_torch(frame) and "/_dynamo/" in frame.file for frame in found)
    return (compiling.pop(), False) if inside and len(compiling) == 1 else (None, False)
