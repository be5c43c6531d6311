"""Writes events: one line, one ``write``, straight to the kernel, so that nothing dies with us.

``O_APPEND`` makes each line whole without a lock, and a line that was written survives SIGKILL.
A recorder method never raises into the program: a full disk or a broken value is counted and the
program goes on.
"""

import contextlib
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .stacks import user_stack

KEPT = "events.jsonl"
STEADY = "steady"
SEGMENTS = 8
STEADY_POINTS = frozenset({"step"})
_STANDING_POINTS = frozenset({"header", "probe"})


def worth_recording(count: int) -> bool:
    """Whether the ``count``-th event of a kind is written: the first eight, then powers of two.

    This bounds what a loop of identical events can write, and the last line still says within a
    factor of two how many there were, whatever ends the process.
    """
    return count <= 8 or count & (count - 1) == 0


class ThreadState(threading.local):
    """What the recorder and the probes keep per thread.

    Attributes:
        tid: native id, fetched once (a system call).
        phase: the workload's current phase in this thread.
        compiles: ids of the dynamo compiles that this thread is inside of, innermost last.
        traces: how many FX traces this thread is inside of.
        counts: events of one kind so far, for ``worth_recording``.
    """

    traces = 0
    phase: str | None = None

    def __init__(self) -> None:
        self.tid = threading.get_native_id()
        self.compiles: list[str] = []
        self.counts: dict[object, int] = {}
        self.scratch: dict[str, Any] = {}

    def count(self, kind: object) -> int:
        """Count one more event of ``kind`` in this thread and return how many there are."""
        number = self.counts[kind] = self.counts.get(kind, 0) + 1
        return number


class Recorder:
    """The process's event log.

    ``compiling``, ``tracing`` and ``in_backward`` map a native thread id to how deep that thread is
    inside dynamo compiles, FX traces and backward calls; they are read by other threads' probes and
    written by their own thread only, so plain dict operations are enough.

    A lazy recorder, and any recorder after a fork, makes its file with its first event besides
    ``header`` and ``probe``, which then come first: a run folder is not littered with the files of
    helper processes that never had anything to say.

    Attributes:
        at_end: called at the program's end, guarded, before the ``end`` event. They must not wait
            for a lock, since other threads may still run.
        quiet: nothing has been written yet.
        lost: events that could not be written.
    """

    def __init__(
        self,
        folder: str,
        *,
        name: str = KEPT,
        max_steady_bytes: int = 256 << 20,
        lazy: bool = False,
    ) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.lost = 0
        self.local = ThreadState()
        self.compiling: dict[int, int] = {}
        self.tracing: dict[int, int] = {}
        self.in_backward: dict[int, int] = {}
        self.at_end: list[Callable[[], object]] = []
        self.quiet = True
        self._seq = itertools.count(1)
        self._standing: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._lock = threading.RLock()
        self._kept = _Log(os.path.join(folder, name))  # noqa: PTH118 - few imports in the child
        self._steady: _Log | None = None
        self._segment_bytes = max(max_steady_bytes // SEGMENTS, 1 << 16)
        self._segment_number = 0
        self._segment_left = 0
        if not lazy:
            self._kept.open()
            self.quiet = False

    def emit(
        self,
        point: str,
        data: Mapping[str, Any] | None = None,
        *,
        edge: str = "instant",
        compile_id: str | None = None,
        where: Sequence[Sequence[Any]] | None = None,
        stack: bool = False,
    ) -> int:
        """Write one event and return its sequence number; 0 if it could not be written.

        Args:
            point: the event's name in ``harness.events.schema``.
            data: its data, made of what JSON can hold.
            edge: ``enter``, ``exit`` or ``instant``.
            compile_id: dynamo's id of the compile that it belongs to.
            where: stack frames as ``[file, line, function, user]``, innermost first.
            stack: record the caller's stack (ignored when ``where`` is given).
        """
        try:
            if point in _STANDING_POINTS and not self._stand(point, data):
                return 0
            if self.quiet:
                self._begin()
            if where is None and stack:
                where = user_stack()
            seq, line = self._line(point, edge, compile_id, where, data)
            self._write(point, line)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self.lost += 1
            return 0
        else:
            return seq

    def emit_counted(
        self,
        point: str,
        kind: object,
        data: dict[str, Any],
        *,
        edge: str = "instant",
        compile_id: str | None = None,
        where: Sequence[Sequence[Any]] | None = None,
        stack: bool = False,
    ) -> int:
        """Like ``emit``, for events that a loop repeats: bounded by ``worth_recording``."""
        count = self.local.count((point, kind))
        if not worth_recording(count):
            return 0
        data["count"] = count
        return self.emit(point, data, edge=edge, compile_id=compile_id, where=where, stack=stack)

    def look_at_all_threads(self) -> None:
        """Make every thread's next calls of compiled code visible; the wrapper probe sets this."""

    def after_fork(self) -> None:
        """Give a forked child a file of its own, ``events-PID.jsonl``, once it has an event."""
        self.pid = os.getpid()
        self.local = ThreadState()
        self.compiling, self.tracing, self.in_backward = {}, {}, {}
        self._lock = threading.RLock()
        self._kept.close()
        self._kept = _Log(os.path.join(self.folder, f"events-{self.pid}.jsonl"))  # noqa: PTH118
        if self._steady is not None:
            self._steady.close()
        self._steady, self._segment_left = None, 0
        self.quiet = True

    def _stand(self, point: str, data: Mapping[str, Any] | None) -> bool:
        """Remember the header or a probe's state; return whether to write it now."""
        data = data or {}
        self._standing[f"{point} {data.get('name', '')}"] = (point, data)
        return not self.quiet

    def _begin(self) -> None:
        with self._lock:
            if not self.quiet:
                return
            self._kept.open()
            for point, data in list(self._standing.values()):
                self._kept.write(self._line(point, "instant", None, None, data)[1])
            self.quiet = False

    def _line(
        self,
        point: str,
        edge: str,
        compile_id: str | None,
        where: Sequence[Sequence[Any]] | None,
        data: Mapping[str, Any] | None,
    ) -> tuple[int, bytes]:
        local = self.local
        seq = next(self._seq)
        event: dict[str, Any] = {
            "point": point,
            "t_ns": time.monotonic_ns(),
            "seq": seq,
            "pid": self.pid,
            "tid": local.tid,
            "thread": current_thread_name(local.tid),
            "edge": edge,
        }
        if local.phase is not None:
            event["phase"] = local.phase
        if compile_id is not None:
            event["compile_id"] = compile_id
        if where:
            event["where"] = where
        if data is not None:
            event["data"] = data
        return seq, _ascii_json(event) + b"\n"

    def _write(self, point: str, line: bytes) -> None:
        if point not in STEADY_POINTS:
            self._kept.write(line)
            return
        with self._lock:
            if self._steady is None or self._segment_left < len(line):
                self._steady = self._next_segment()
            self._segment_left -= len(line)
            self._steady.write(line)

    def _next_segment(self) -> "_Log":
        if self._steady is not None:
            self._steady.close()
        self._segment_number += 1
        self._segment_left = self._segment_bytes
        oldest = self._segment_number - SEGMENTS
        if oldest > 0:
            with contextlib.suppress(FileNotFoundError):  # somebody else made room
                os.unlink(self._segment_path(oldest))  # noqa: PTH108
        log = _Log(self._segment_path(self._segment_number))
        log.open()
        return log

    def _segment_path(self, number: int) -> str:
        return os.path.join(self.folder, f"{STEADY}-{self.pid}-{number:06d}.jsonl")  # noqa: PTH118


class _Log:
    """A file that whole lines are appended to.

    A program may close descriptors that it did not open (a daemon does) and then get the same
    number for a file of its own, so the file behind the number is checked before each write.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1
        self._file = (-1, -1)
        self._torn = False

    def open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)
        status = os.fstat(self._descriptor)
        self._file = (status.st_dev, status.st_ino)

    def close(self) -> None:
        if self._is_ours():
            os.close(self._descriptor)

    def write(self, line: bytes) -> None:
        if not self._is_ours():
            self.open()
        if self._torn:  # the last line was cut short by a full disk: keep this one apart from it
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):  # a nearly full disk cuts a write short
                written += os.write(self._descriptor, line[written:])
        except OSError:
            self._torn = True
            raise
        self._torn = False

    def _is_ours(self) -> bool:
        try:
            status = os.fstat(self._descriptor)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file


def is_foreign_thread() -> bool:
    """Whether Python did not start the calling thread: autograd's, say.

    Such a thread has no ``Thread`` object, or a dummy one made when somebody asked.
    """
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return thread is None or isinstance(thread, threading._DummyThread)  # noqa: SLF001


def current_thread_name(tid: int) -> str:
    """Name of the calling thread, without making a dummy ``Thread`` for a foreign one."""
    # Thread._active is what threading.current_thread() reads; that call would add an entry.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    if thread is not None and not isinstance(thread, threading._DummyThread):  # noqa: SLF001
        name: str = thread.name
        return name
    # A thread of C++ may have told the system its name: autograd's is "pt_autograd_" and a device
    # index (torch/csrc/autograd/engine.cpp). Without one it has the process's.
    system = _system_name(tid)
    if system and system != _system_name(os.getpid()):
        return system
    return thread.name if thread is not None else f"thread-{tid}"


def _system_name(tid: int) -> str:
    try:
        with open(f"/proc/self/task/{tid}/comm", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().strip()
    except OSError:  # not Linux
        return ""


def _ascii_json(event: dict[str, Any]) -> bytes:
    """The event as JSON whose every control byte, as torch's guard texts hold them, is escaped.

    A lone surrogate (from a path or an argument that is not UTF-8) is no text that a strict reader
    takes, so it becomes a question mark.
    """
    text = json.dumps(event, ensure_ascii=True, default=repr)
    if "\\ud" in text:
        whole = json.dumps(event, ensure_ascii=False, default=repr).encode("utf-8", "replace")
        text = json.dumps(json.loads(whole), ensure_ascii=True)
    return text.encode("ascii")
