"""Writes events: one line, one ``write``, straight to the kernel, so that nothing dies with us.

``O_APPEND`` makes each line whole without a lock, and a line that was written survives SIGKILL.
A recorder method never raises into the program: a full disk or a broken value is counted and the
program goes on.
"""

import itertools
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .stacks import user_stack

KEPT = "events.jsonl"
STEADY = "steady"
SEGMENTS = 8
STEADY_POINTS = frozenset({"step"})


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
        epoch: the recorder's epoch that this thread was last looked at in.
        looks: calls still to be looked at in this epoch.
        compiles: ids of the dynamo compiles that this thread is inside of, innermost last.
        traces: how many FX traces this thread is inside of.
        busy: the recorder is at work in this thread; probes must not recurse.
        counts: events of one kind so far, for ``worth_recording``.
    """

    epoch = -1
    looks = 0
    traces = 0
    busy = False
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

    ``compiling`` and ``tracing`` map a native thread id to how deep that thread is inside dynamo
    compiles and FX traces; they are read by other threads' probes and written by their own thread
    only, so plain dict operations are enough.
    """

    def __init__(self, folder: str, *, name: str = KEPT, max_steady_bytes: int = 256 << 20) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.lost = 0
        self.epoch = 0
        self.local = ThreadState()
        self.compiling: dict[int, int] = {}
        self.tracing: dict[int, int] = {}
        self._name = name
        self._seq = itertools.count(1)
        self._kept = self._open(name)
        self._segment_bytes = max(max_steady_bytes // SEGMENTS, 1 << 16)
        self._segment_lock = threading.Lock()
        self._segment_number = 0
        self._segment_left = 0
        self._steady = -1

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
            where: stack frames as ``[file, line, function, user]``, user frames first.
            stack: record the caller's stack (ignored when ``where`` is given).
        """
        local = self.local
        was_busy, local.busy = local.busy, True
        try:
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
            if where is None and stack:
                where = user_stack()
            if where:
                event["where"] = where
            if data is not None:
                event["data"] = data
            # ensure_ascii also escapes the control bytes that torch's guard texts can hold.
            line = json.dumps(event, ensure_ascii=True, default=repr).encode("ascii") + b"\n"
            self._write(point, line)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self.lost += 1
            return 0
        else:
            return seq
        finally:
            local.busy = was_busy

    def emit_counted(self, point: str, kind: object, data: dict[str, Any], **rest: Any) -> int:
        """Like ``emit``, for events that a loop repeats: bounded by ``worth_recording``."""
        count = self.local.count((point, kind))
        if not worth_recording(count):
            return 0
        data["count"] = count
        return self.emit(point, data, **rest)

    def look_at_all_threads(self) -> None:
        """Make every thread's next calls of compiled code visible (see the wrapper probe)."""
        self.epoch += 1

    def after_fork(self) -> None:
        """Give a forked child its own files: ``events-PID.jsonl``."""
        self.pid = os.getpid()
        self.local = ThreadState()
        self.compiling, self.tracing = {}, {}
        self._segment_lock = threading.Lock()
        self._segment_left, self._steady = 0, -1
        os.close(self._kept)
        self._kept = self._open(f"events-{self.pid}.jsonl")

    def _open(self, name: str) -> int:
        path = os.path.join(self.folder, name)  # noqa: PTH118 - keep the child's imports few
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _write(self, point: str, line: bytes) -> None:
        if point not in STEADY_POINTS:
            _write_whole(self._kept, line)
            return
        with self._segment_lock:
            if self._segment_left < len(line):
                self._next_segment()
            self._segment_left -= len(line)
            _write_whole(self._steady, line)

    def _next_segment(self) -> None:
        if self._steady >= 0:
            os.close(self._steady)
        self._segment_number += 1
        self._steady = self._open(self._segment_name(self._segment_number))
        self._segment_left = self._segment_bytes
        oldest = self._segment_number - SEGMENTS
        if oldest > 0:
            os.unlink(os.path.join(self.folder, self._segment_name(oldest)))  # noqa: PTH108, PTH118

    def _segment_name(self, number: int) -> str:
        return f"{STEADY}-{self.pid}-{number:06d}.jsonl"


def current_thread_name(tid: int) -> str:
    """Name of the calling thread, without making a dummy ``Thread`` for a foreign one."""
    # Thread._active is what threading.current_thread() reads; that call would add an entry.
    thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # noqa: SLF001
    return thread.name if thread is not None else f"thread-{tid}"


def _write_whole(descriptor: int, line: bytes) -> None:
    written = os.write(descriptor, line)
    while written < len(line):  # a signal or a nearly full disk can cut a write short
        written += os.write(descriptor, line[written:])
