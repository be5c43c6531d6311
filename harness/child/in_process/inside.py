"""A watch that begins in a program that runs already, and ends before the program does.

All watches of a process share its probes and its event log; each has a run folder of its own, into
which the log's lines are copied from the watch's beginning to its end. The probes are installed for
the first watch and taken out after the last one. In a process that was started to be watched they
are there already, and stay.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import boot, caches, following, gpus
from .. import torch_symbols as symbols
from ..attach import Attachment
from ..detail import Detail
from ..errors import record_error
from ..log import Log
from ..probes import Probe, Unavailable
from ..probes.invariants import check
from ..recorder import KEPT, STEADY_POINTS, Recorder
from ..session import name_at_end
from ..settings import Settings
from . import places
from .entries_before import record_entries

# A step's line takes 186 bytes: a night of them is for the watch from outside.
_MAX_STEADY = 1 << 16
_SEQ = re.compile(rb'"seq": (\d+)')


class Copy:
    """One watch's own file: the lines from its beginning to its end, numbered from 1."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.kept: list[str] = []
        self._log = Log(os.path.join(settings.folder, KEPT))  # noqa: PTH118
        self._log.open()
        self._lock = threading.Lock()
        self._seq = 0
        self._closed = False

    def write(self, line: bytes) -> None:
        """Append a line, unless it is closed. Raises OSError."""
        # The point and the time stand before the number, so the first one is it.
        with self._lock:
            if self._closed:  # another thread was about to write when the watch ended
                return
            self._seq += 1
            self._log.write(_SEQ.sub(b'"seq": %d' % self._seq, line, count=1))

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._closed = True
            self._log.close()


class Copies:
    """Stands in the place of a recorder's file: lines go there, if there is one, and to copies."""

    def __init__(self, log: Any) -> None:
        self.log = log
        self.copies: tuple[Copy, ...] = ()

    def open(self) -> None:
        """Open the file below."""
        if self.log is not None:
            self.log.open()

    def close(self) -> None:
        """Close the file below, in a forked process, whose copies nobody reads."""
        self.copies = ()
        if self.log is not None:
            self.log.close()

    def write(self, line: bytes) -> None:
        """Append a line everywhere. Raises OSError."""
        if self.log is not None:
            self.log.write(line)
        for copy in self.copies:
            copy.write(line)


class InsideRecorder(Recorder):
    """An event log without a file of its own, which can be closed while the program goes on."""

    def __init__(self) -> None:
        super().__init__("", lazy=True)
        self.copies = Copies(None)
        self.closed = False
        self._kept = self.copies  # type: ignore[assignment]
        self._steady_lines = 0
        self.quiet = False

    def emit(
        self,
        point: str,
        data: Any = None,
        *,
        edge: str = "instant",
        compile_id: str | None = None,
        where: Sequence[Sequence[Any]] | None = None,
        stack: bool = False,
    ) -> int:
        """As ``Recorder.emit``; nothing once it is closed."""
        if self.closed:
            return 0
        return super().emit(point, data, edge=edge, compile_id=compile_id, where=where, stack=stack)

    def emit_steady(self, point: str, data: Mapping[str, Any] | str | None) -> int:
        """As ``Recorder.emit_steady``; nothing once it is closed."""
        return 0 if self.closed else super().emit_steady(point, data)

    def at_fork(
        self,
        *,
        before: Callable[[], object] | None = None,
        after_in_child: Callable[[], object],
    ) -> None:
        """Nothing: forked processes are not watched, and the system forgets no hook."""

    def at_exit(self, hook: Callable[[], object]) -> None:
        """Have ``hook`` called at the end of each watch."""
        self.at_end.append(hook)

    def _put(self, point: str, line: bytes) -> None:
        if point in STEADY_POINTS:
            self._steady_lines += 1
            if self._steady_lines > _MAX_STEADY:
                return
        self.copies.write(line)


class _Attachment(Attachment):
    """Remembers what each probe replaced."""

    def __init__(self, recorder: Recorder, settings: Settings) -> None:
        super().__init__(recorder, settings)
        self.changed: list[places.Change] = []

    def _install(self, probe: Probe) -> None:
        before = places.values()
        try:
            super()._install(probe)
        finally:
            self.changed += places.changes(before)


class _Session:
    """The probes of a process that was not started to be watched."""

    def __init__(self, copy: Copy) -> None:
        self.recorder = InsideRecorder()
        self.recorder.copies.copies = (copy,)
        self.recorder.emit("header", boot.header(copy.settings))
        self._handlers = places.Handlers()
        self._attachment = _Attachment(self.recorder, copy.settings)

    def start(self) -> None:
        self._attachment.attach()

    def warmup_done(self) -> None:
        self.recorder.emit("phase", {"name": "warmup_done"})

    def end_of_copy(self) -> None:
        for hook in self.recorder.at_end:
            self._guarded(hook)
        self._attachment.report_idle()
        self.recorder.record_left_out()
        if self.recorder.lost:
            reason = f"{self.recorder.lost} events could not be written"
            self._attachment.report("recorder", "failed", reason)

    def take_out(self) -> list[str]:
        """Take the probes out; return the places that somebody else has changed meanwhile."""
        self._attachment.stop_waiting()
        kept = places.undo(self._attachment.changed)
        self._handlers.restore()
        self.recorder.closed = True
        # Only a call that began before can have put the hook back meanwhile.
        self._handlers.restore()
        return kept

    def _guarded(self, hook: Callable[[], object]) -> None:
        try:
            hook()
        except Exception as error:  # noqa: BLE001 - the others still have to run
            self._attachment.report(name_at_end(hook), "failed", repr(error)[:500])


_lock = threading.RLock()
_session: _Session | None = None


def begin(settings: Settings) -> Copy:
    """Begin a watch whose recording goes to ``settings.folder``. Raises OSError."""
    with _lock:
        copy = Copy(settings)
        outer = _outer()
        try:
            if outer is None:
                _begin_first(copy)
            else:
                _begin_another(outer, copy)
        except BaseException:
            _give_up(copy)
            raise
        return copy


def end(copy: Copy, error: BaseException | None) -> None:
    """End a watch; ``error`` left its block. Its file is complete then."""
    with _lock:
        recorder = _outer()
        if recorder is None:
            copy.close()
            return
        if error is not None:
            record_error(recorder, "main", error)
        _last_words(recorder)
        log = _copies_of(recorder)
        log.copies = tuple(other for other in log.copies if other is not copy)
        if _session is not None and not log.copies:
            copy.kept = _end_last()
        alone = _Alone(recorder, copy)
        for name in boot.idle_probes():
            alone.emit("probe", {"name": name, "state": "idle", "reason": ""})
        alone.emit("end")
        copy.close()


def warmup_done() -> None:
    """Record that the program says its warm-up is over, if it is watched from inside."""
    session = _session
    if session is not None:
        session.warmup_done()


def _outer() -> Recorder | None:
    """The event log of this process, if it is watched at all."""
    return _session.recorder if _session is not None else boot.recorder()


def _begin_first(copy: Copy) -> None:
    global _session  # noqa: PLW0603 - the probes are one set for the process
    made = _Session(copy)
    _session = made
    made.start()
    with contextlib.suppress(Unavailable):
        record_entries(made.recorder)
    made.recorder.look_at_all_threads()


def _begin_another(recorder: Recorder, copy: Copy) -> None:
    alone = _Alone(recorder, copy)
    alone.emit("header", boot.header(copy.settings))
    for point, data in list(recorder._standing.values()):  # noqa: SLF001
        if point == "probe":
            alone.emit(point, data)
    # What has been told often enough elsewhere is told anew.
    recorder.local.counts.clear()
    with contextlib.suppress(Unavailable):
        record_entries(alone)
    log = _copies_of(recorder)
    log.copies = (*log.copies, copy)
    recorder.look_at_all_threads()


class _Alone(InsideRecorder):
    """Writes to one copy alone, as ``recorder`` would."""

    def __init__(self, recorder: Recorder, copy: Copy) -> None:
        super().__init__()
        self.copies.copies = (copy,)
        self.local = recorder.local


def _copies_of(recorder: Recorder) -> Copies:
    log = recorder._kept  # noqa: SLF001
    if isinstance(log, Copies):
        return log
    recorder._kept = found = Copies(log)  # type: ignore[assignment]  # noqa: SLF001
    return found


def _last_words(recorder: Recorder) -> None:
    """What is read at the end of a watch."""
    if _session is not None:
        _session.end_of_copy()
        return
    # The hooks of a process that goes on are for its own end.
    following.of(recorder).settle()
    caches.record_all(recorder)
    for handler in list(logging.getLogger(symbols.TRACE_LOGGER).handlers):
        if isinstance(handler, Detail):
            handler.record()
    if symbols.FX_TRACING.find() is not None:
        recorder.emit("invariants", check(recorder))
    gpus.record_once(recorder)


def _end_last() -> list[str]:
    global _session  # noqa: PLW0603
    assert _session is not None
    kept = _session.take_out()
    _session = None
    return kept


def _give_up(copy: Copy) -> None:
    """Leave nothing of a watch that could not begin."""
    recorder = _outer()
    if recorder is not None:
        log = _copies_of(recorder)
        log.copies = tuple(other for other in log.copies if other is not copy)
        if _session is not None and not log.copies:
            _end_last()
    copy.close()


def _after_fork() -> None:
    """A forked process is not watched: nobody there ends the watch and reads what it says."""
    global _lock, _session  # noqa: PLW0603
    _lock = threading.RLock()
    if _session is not None:
        _session.recorder.closed = True
        _session.take_out()
        _session = None


os.register_at_fork(after_in_child=_after_fork)
