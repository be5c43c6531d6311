"""Writes events: one line, one ``write``, straight to the kernel, so that nothing dies with us.

``O_APPEND`` makes each line whole without a lock, and a line that was written survives SIGKILL.
A recorder method never raises into the program: a full disk or a broken value is counted and the
program goes on.
"""

import atexit
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, Protocol

from .bounds import Bounds, worth_recording
from .calling_thread import current_thread_name, registered_thread
from .log import Log, ascii_line, json_text
from .segments import Segments
from .stacks import user_stack
from .thread_state import ThreadState

KEPT = "events.jsonl"
STEADY_POINTS = frozenset({"step", "memory"})
_STANDING_POINTS = frozenset({"header", "probe"})
#: Where a ``Thread`` keeps its start while that is not written.
_UNSAID = "_compile_race_start"


class Scheduler(Protocol):
    """Who makes threads wait: see ``schedule.make``, which makes one.

    Attributes:
        blocked: the threads that wait for a lock, each with a function that returns the native id
            of the lock's owner now, or None.
    """

    blocked: dict[int, Callable[[], int | None]]

    def number_thread(self, thread: threading.Thread) -> None:
        """The program starts a thread; called before it runs."""

    def reach(self, point: str, edge: str) -> None:
        """The calling thread is at a point. Never raises."""


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
        schedule: makes threads wait at points; None, as a rule: they run as they like.
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
        self.schedule: Scheduler | None = None
        self._seq = itertools.count(1)
        self._unwritten: set[int] = set()
        self._standing: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._bounds = Bounds()
        self._lock = threading.RLock()
        self._kept = Log(os.path.join(folder, name))  # noqa: PTH118 - few imports in the child
        self._steady = Segments(folder, max_steady_bytes)
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
        """Write one event and return its sequence number.

        Returns 0 if it could not be written, or was left out because there are so many like it in
        this process (see ``bounds``). What began with such an event needs no ``exit``. A steady
        event is an instant, and has its data alone.

        Args:
            point: the event's name in ``harness.events.schema``.
            data: its data, made of what JSON can hold.
            edge: ``enter``, ``exit`` or ``instant``.
            compile_id: dynamo's id of the compile that it belongs to.
            where: stack frames as ``[file, line, function, user]``, innermost first.
            stack: record the caller's stack (ignored when ``where`` is given).
        """
        if point in STEADY_POINTS:
            return self.emit_steady(point, data)
        try:
            if point in _STANDING_POINTS and not self._stand(point, data):
                return 0
            if self.quiet:
                self._begin()
            if edge != "exit" and not self.admits(point, data):
                return 0
            if where is None and stack:
                where = user_stack()
            if not self.local.said:
                self._say_start()
            seq, line = self._line(point, edge, compile_id, where, data)
            self._write(point, seq, line)
            self.local.known = True
            self.noted(point, edge)
        except Exception:  # noqa: BLE001 - the watch must never break the program it watches
            self.lost += 1
            return 0
        else:
            return seq

    def emit_steady(self, point: str, data: Mapping[str, Any] | str | None) -> int:
        """``emit`` for what a loop says each time; its data may be JSON already.

        Only such a point: its events are not counted, and the oldest make room for the newest.
        """
        if point not in STEADY_POINTS:
            self.lost += 1
            return 0
        try:
            if self.quiet:
                self._begin()
            seq, line = self._line(point, "instant", None, None, data)
            self._write(point, seq, line)
            self.noted(point, "instant")
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
        count = self.counted(point, kind)
        if not count:
            return 0
        data["count"] = count
        return self.emit(point, data, edge=edge, compile_id=compile_id, where=where, stack=stack)

    def counted(self, point: str, kind: object) -> int:
        """Count one more event of a kind in this thread.

        Returns how many there are if this one is ``worth_recording``, 0 if it is not: ``emit`` it
        with that as its ``count`` where the data take long to gather.
        """
        count = self.local.count((point, kind))
        return count if worth_recording(count) else 0

    def admits(self, point: str, data: Mapping[str, Any] | None = None) -> bool:
        """Count one more event of a point; return whether there is still room for it."""
        if self._bounds.admit(point, data):
            return True
        self.leave_out(point)
        return False

    def hold_start(
        self, thread: threading.Thread, data: dict[str, Any], where: Sequence[Sequence[Any]]
    ) -> None:
        """Keep the start of a thread, by the calling one, until that thread has something to say.

        Of the many threads that a program makes all night most have nothing to say to us.
        """
        unsaid = (time.monotonic_ns(), self.local.tid, current_thread_name(self.local.tid))
        thread.__dict__[_UNSAID] = (*unsaid, data, where)

    def start_is_held(self, thread: threading.Thread) -> bool:
        """Whether the thread, which is ending, had nothing to say; its start is then left out."""
        if thread.__dict__.pop(_UNSAID, None) is None:
            return False
        self.leave_out("thread_start")
        return True

    def leave_out(self, point: str) -> None:
        """Count an event of a point that is not written; say so at powers of two."""
        if self._bounds.leave_out(point):
            self.emit("left_out", {"of": point, "count": self._bounds.left_out[point]})

    def record_left_out(self) -> None:
        """Write how many events of each point were left out; called once all hooks ran."""
        for point, count in sorted(self._bounds.left_out.items()):
            self.emit("left_out", {"of": point, "count": count})

    def record_end(self, text: str) -> None:
        """Write the last event: what the program left with, and which events are still to come.

        A daemon thread can have numbered an event that it never writes, since it is not run again.
        """
        with self._lock:
            data: dict[str, Any] = {"exit_text": text} if text else {}
            if self._unwritten:
                data["under_way"] = sorted(self._unwritten)
            self.emit("end", data or None)

    def noted(self, point: str, edge: str) -> None:
        """Told of each event that was written; the memory probe sets this. Must not raise."""

    def failing(self, error: BaseException, caller: FrameType | None = None) -> None:
        """Told of an exception that is about to be recorded; the memory probe sets this.

        ``caller`` is the frame that it has come up to, where it is still on its way.
        """

    def compile_wanted(self, caller: FrameType) -> None:
        """Told that ``caller`` takes the compile lock; the guards probe sets this."""

    def at_fork(
        self,
        *,
        before: Callable[[], object] | None = None,
        after_in_child: Callable[[], object],
    ) -> None:
        """Have hooks called at each fork, as ``os.register_at_fork`` does."""
        if before is None:
            os.register_at_fork(after_in_child=after_in_child)
        else:
            os.register_at_fork(before=before, after_in_child=after_in_child)

    def at_exit(self, hook: Callable[[], object]) -> None:
        """Have ``hook`` called once as the program ends, while objects are still alive.

        Finalizers (``weakref.finalize``) all run at exit, as if every object had died. Exit
        handlers run last in, first out: theirs has to be registered before ours.
        """
        called_in: list[int] = []

        def once() -> None:
            # Where the program ends by os._exit no exit handler runs, only the recorder's hooks.
            if not self.quiet and self.pid not in called_in:
                called_in.append(self.pid)
                hook()

        weakref.finalize(once, int)
        atexit.register(once)
        self.at_end.append(once)

    def reach(self, point: str, edge: str) -> None:
        """The calling thread is at an edge of a point, and may have to wait there for its turn."""
        if self.schedule is not None:
            self.schedule.reach(point, edge)

    def look_at_all_threads(self) -> object:
        """Make every thread's next calls of compiled code visible; the wrapper probe sets this."""

    def after_fork(self) -> None:
        """Give a forked child a file of its own, ``events-PID.jsonl``, once it has an event."""
        self.pid = os.getpid()
        self.local = ThreadState()
        self.compiling, self.tracing, self.in_backward = {}, {}, {}
        self._lock = threading.RLock()
        self._unwritten = set()
        self._bounds = Bounds()
        self._kept.close()
        self._kept = Log(os.path.join(self.folder, f"events-{self.pid}.jsonl"))  # noqa: PTH118
        self._steady.begin_anew()
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
                self._write(point, *self._line(point, "instant", None, None, data))
            self.quiet = False

    def _say_start(self) -> None:
        """Write the calling thread's own start, if that was held."""
        self.local.said = True
        thread = registered_thread()
        unsaid = None if thread is None else thread.__dict__.pop(_UNSAID, None)
        if unsaid is None:
            return
        t_ns, tid, name, data, where = unsaid
        data["child_tid"], data["child_ident"] = self.local.tid, threading.get_ident()
        point = "thread_start"
        self._write(point, *self._line(point, "instant", None, where, data, by=(t_ns, tid, name)))

    def _line(
        self,
        point: str,
        edge: str,
        compile_id: str | None,
        where: Sequence[Sequence[Any]] | None,
        data: Mapping[str, Any] | str | None,
        *,
        by: tuple[int, int, str] | None = None,
    ) -> tuple[int, bytes]:
        """An event as a line; ``by`` says when and who was meant, if not this thread, now."""
        local = self.local
        if by is None:
            t_ns, tid, name_text = time.monotonic_ns(), local.tid, local.name_text()
        else:
            t_ns, tid, name_text = by[0], by[1], json_text(by[2])
        with self._lock:
            seq = next(self._seq)
            self._unwritten.add(seq)
        try:
            # Point and edge are words of the schema's.
            text = (
                f'{{"point": "{point}", "t_ns": {t_ns}, "seq": {seq}, "pid": {self.pid}, '
                f'"tid": {tid}, "thread": {name_text}, "edge": "{edge}"'
            )
            if by is None and local.phase is not None:
                text += f', "phase": {json_text(local.phase)}'
            if by is None and not local.known:
                text += f', "ident": {threading.get_ident()}'
            if compile_id is not None:
                text += f', "compile_id": {json_text(compile_id)}'
            if where:
                text += f', "where": {json_text(where)}'
            if data is not None:
                text += f', "data": {data if isinstance(data, str) else json_text(data)}'
            return seq, ascii_line(text + "}")
        except Exception:
            self._unwritten.discard(seq)
            raise

    def _write(self, point: str, seq: int, line: bytes) -> None:
        try:
            self._put(point, line)
        finally:  # what cannot be written is lost, and is told of as such
            self._unwritten.discard(seq)

    def _put(self, point: str, line: bytes) -> None:
        if point not in STEADY_POINTS:
            self._kept.write(line)
            return
        with self._lock:
            self._steady.write(line)
