"""Dumps of stacks: py-spy's text and JSON, and what faulthandler writes.

py-spy: ``py-spy dump`` of 0.3 and 0.4; faulthandler: CPython's ``Python/traceback.c``.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from harness.events.values import Frame
from harness.logs.facts import Dump, DumpedThread, Fact, Place
from harness.logs.prefix import Clean
from harness.timeline import frames

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)$")
_PYTHON = re.compile(r"Python v\d[\w.+]* ")
_SPY_THREAD = re.compile(
    r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,20}) \(([\w+ ,]{1,60})\)(?:: ?"(.*)")?\s*$'
)
_SPY_FRAME = re.compile(r"\s{2,8}(\S.{0,400}?) \(([^()]{1,1000}?)(?::(\d{1,9}))?\)\s*$")
_FATAL = re.compile(r"Fatal Python error: (.{1,200})$")
_TIMEOUT = re.compile(r"Timeout \(.{1,40}\)!\s*$")
_FAULT_THREAD = re.compile(
    r"(Current t|T)hread (0x[0-9a-f]{1,16})(?: \[(.{0,200})\])? \(most recent call first\):"
)
_FAULT_FRAME = re.compile(r'  File "(.{1,1000}?)", line (\d{1,9}|\?{3}) in (.{1,400})$')
_LOCALS = re.compile(r"\s{6,}")
_MAX_THREADS = 1024
_MAX_FRAMES = 256
_MAX_TEXT = 256 * 1024
_MAX_JSON = 16 << 20
_LIBRARY = sys.stdlib_module_names - {"test", "this"}
_PACKAGES = frozenset({"torch", "triton"})


@dataclass(slots=True)
class _Thread:
    place: Place
    tid: int
    name: str
    active: bool
    frames: list[Frame] = field(default_factory=list)

    def fact(self) -> DumpedThread:
        return DumpedThread(
            tid=self.tid,
            name=self.name,
            frames=tuple(self.frames),
            active=self.active,
            place=self.place,
        )


@dataclass(slots=True)
class _Open:
    """A dump that is being read; ``spy``: py-spy's, else faulthandler's."""

    place: Place
    spy: bool
    pid: int = 0
    command: str = ""
    fatal: str = ""
    threads: list[_Thread] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    size: int = 0

    def keep(self, text: str) -> None:
        self.size += len(text) + 1
        if self.size < _MAX_TEXT:
            self.text.append(text)


class Stacks:
    """Recognises dumps of stacks."""

    def __init__(self) -> None:
        self._open: _Open | None = None
        self._blank = 0

    @property
    def busy(self) -> bool:
        """Whether a dump has begun."""
        return self._open is not None

    def feed(self, line: Clean, place: Place) -> Iterator[Fact]:
        """Take the next line."""
        text = line.text
        begun = self._heading(text, place)
        if begun is not None:
            yield from self.finish()
            self._open, self._blank = begun, 0
            begun.keep(text)
            return
        thread = self._thread(text, place)
        if thread is not None:
            spy = text.endswith(('"', ")"))
            if self._open is None or self._open.spy != spy:
                yield from self.finish()
                self._open = _Open(place, spy)
            self._open.keep(text)
            self._blank = 0
            if len(self._open.threads) < _MAX_THREADS:
                self._open.threads.append(thread)
        elif self._open is not None:
            yield from self._more(self._open, text)

    def _heading(self, text: str, place: Place) -> _Open | None:
        if found := _FATAL.match(text):
            return _Open(place, spy=False, fatal=found[1])
        if _TIMEOUT.match(text):
            return _Open(place, spy=False)
        if found := _PROCESS.match(text):
            return _Open(place, spy=True, pid=int(found[1]), command=found[2][:2000])
        return None

    def _thread(self, text: str, place: Place) -> _Thread | None:
        if "hread " not in text[:16]:
            return None
        if found := _FAULT_THREAD.match(text):
            return _Thread(place, 0, found[3] or found[2], active=found[1].startswith("C"))
        if found := _SPY_THREAD.match(text):
            tid = int(found[1], 16) if found[1].startswith("0x") else int(found[1])
            active = "active" in found[2]
            # What py-spy prints without a system's id is pthread's number, which is no thread id.
            return _Thread(place, tid if tid < 1 << 31 else 0, found[3] or found[1], active=active)
        return None

    def _more(self, open_: _Open, text: str) -> Iterator[Fact]:
        frame = self._frame(open_, text)
        if frame is not None:
            if open_.threads and len(open_.threads[-1].frames) < _MAX_FRAMES:
                open_.threads[-1].frames.append(frame)
            open_.keep(text)
            self._blank = 0
            return
        if not text.strip():
            self._blank += 1
            if self._blank <= 2:
                open_.keep(text)
                return
        elif _PYTHON.match(text) or (open_.spy and _LOCALS.match(text)):
            return
        elif open_.fatal and not open_.threads and self._blank < 2:
            open_.keep(text)
            self._blank += 1
            return
        yield from self.finish()

    def _frame(self, open_: _Open, text: str) -> Frame | None:
        if not open_.spy:
            found = _FAULT_FRAME.match(text)
            if found is None:
                return None
            line = int(found[2]) if found[2].isdecimal() else 0
            return frames.of_dump(found[1], line, found[3])
        found = _SPY_FRAME.match(text) if open_.threads else None
        return _spy_frame(found[1], found[2], int(found[3] or 0)) if found else None

    def finish(self) -> Iterable[Fact]:
        """The dump that was being read."""
        open_, self._open = self._open, None
        if open_ is None or not (open_.fatal or any(thread.frames for thread in open_.threads)):
            return []
        return [
            Dump(
                place=open_.place,
                threads=tuple(thread.fact() for thread in open_.threads),
                pid=open_.pid,
                command=open_.command,
                fatal=open_.fatal,
                text="\n".join(open_.text).rstrip(),
            )
        ]


class _JsonFrame(msgspec.Struct):
    name: str
    filename: str
    line: int = 0


class _JsonThread(msgspec.Struct):
    frames: list[_JsonFrame]
    pid: int = 0
    os_thread_id: int | None = None
    thread_name: str | None = None
    active: bool = False


def of_json(raw: bytes, place: Place) -> Dump | None:
    """``py-spy dump --json``; None if the text is none."""
    if len(raw) > _MAX_JSON:
        return None
    try:
        threads = msgspec.json.decode(raw, type=list[_JsonThread])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if not any(thread.frames for thread in threads):
        return None
    found = tuple(
        DumpedThread(
            tid=thread.os_thread_id or 0,
            name=thread.thread_name or "",
            frames=tuple(_spy_frame(f.name, f.filename, f.line) for f in thread.frames),
            active=thread.active,
            place=place,
        )
        for thread in threads[:_MAX_THREADS]
    )
    text = "\n".join(
        f'Thread {t.tid} ({"active" if t.active else "idle"}): "{t.name}"\n'
        + "\n".join(f"    {f.function} ({f.file}:{f.line})" for f in t.frames[:_MAX_FRAMES])
        for t in found
    )
    return Dump(place=place, threads=found, pid=threads[0].pid, text=text[:_MAX_TEXT])


def _spy_frame(name: str, file: str, line: int) -> Frame:
    """A frame whose file py-spy may have shortened to what comes after its folder of packages."""
    top = file.split("/", 1)[0].removesuffix(".py")
    if not file.startswith(("/", "<")) and (top in _LIBRARY or top in _PACKAGES):
        folder = "site-packages/" if top in _PACKAGES else ""
        return Frame(f"/usr/lib/python3/{folder}{file}", line, name, user=False)
    return frames.of_dump(file, line, name)
