"""``trace.json``: the recording as a picture in time, for ui.perfetto.dev and chrome://tracing.

Made from the events themselves, in one pass and in bounded memory, so that it shows what was
recorded and not what was made of it.
"""

import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from harness.diagnosis.sharing import shortener
from harness.events import schema
from harness.events.files import segments, writing_whole
from harness.render import text
from harness.render.trace_words import args_of, memory_values, name_of, point_of
from harness.render.tracks import Thread, Tracks, What
from harness.timeline.recording import Recording

TRACE = "trace.json"

LIMIT = 100_000
"""Events that are shown at most, and steps as many: what a browser loads without trouble."""

_OPEN = {"cut": "no end was recorded"}
_THREAD, _LOCK, _COMPILE, _STEP = "thread", "lock_wait", "dynamo_compile", "step"
_STEADY_BYTES = 150
_STEADY = frozenset({"step", "memory"})
_SILENT = frozenset(
    {"header", "probe", "gpu", "caches", "invariants", "compile_detail", "left_out"}
)
_NAMES = 4096
_encode = msgspec.json.Encoder().encode


def write_trace(recording: Recording, path: Path, limit: int = LIMIT) -> None:
    """Write a recording as a Chrome trace.

    Args:
        recording: the run folder.
        path: the file to write.
        limit: events to show at most, and about as many steps and samples of memory. Of these every
            second, third, ... one is shown if there are more; of the others the first ones. The
            trace says so under ``otherData``: ``every`` and ``cutAfter``.

    Raises:
        OSError: the recording cannot be read or the trace not be written.
    """
    with writing_whole(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        first = True

        def put(event: dict[str, Any]) -> None:
            nonlocal first
            file.write(("" if first else ",\n") + _line(event))
            first = False

        trace = _Trace(put)
        events = recording.events()
        for event in itertools.islice(events, limit):
            trace.add(event)
        cut = next(events, None) is not None
        trace.finish()
        stride = _stride(recording.folder, limit)
        for event in itertools.islice(recording.steady(), 0, None, stride):
            trace.add_steady(event)
        other = {"clock": "CLOCK_MONOTONIC", "cutAfter": limit if cut else None, "every": stride}
        file.write(f'\n],"otherData":{_line(other)}}}\n')


def _stride(folder: Path, limit: int) -> int:
    """Every how many steady events one is shown; told from their size, so as to read them once."""
    size = 0
    for path in segments(folder):
        try:
            size += path.stat().st_size
        except OSError:  # the recorder has just deleted it
            continue
    return max(1, size // _STEADY_BYTES // limit + 1)


def _line(event: dict[str, Any]) -> str:
    try:
        return _encode(event).decode()
    except OverflowError:  # a number of more than 64 bits: no recorder of ours wrote it
        return json.dumps(event)


def _texts(home: str = "") -> Callable[[str], str]:
    """Makes a text safe to show and to share; most of them come again and again."""
    shorten = shortener(home)
    return functools.lru_cache(_NAMES)(lambda value: text.line(shorten(value)))


class _Trace:
    """Turns events into slices, instants, counters and arrows."""

    def __init__(self, put: Callable[[dict[str, Any]], None]) -> None:
        self._tracks = Tracks(put)
        self._text = _texts()
        self._t0: int | None = None
        self._end = 0.0
        self._places = itertools.count()
        self._waiting: dict[Thread, Thread] = {}
        self._alive: dict[Thread, bool] = {}
        """Threads whose life is open, and whether it was told who started them."""

    def add(self, event: schema.Event) -> None:
        """Show one kept event."""
        t = self._time(event)
        self._end = max(self._end, t)
        thread, point = (event.pid, event.tid), point_of(event)
        self._seen(thread, t, self._text(event.thread))
        if isinstance(event, schema.Header):
            self._header(event)
        elif isinstance(event, schema.ThreadStart):
            self._thread_start(event, t)
        elif isinstance(event, schema.ThreadEnd):
            self._tracks.close(thread, t, {})
            self._alive.pop(thread, None)
        elif point in _STEADY:
            self.add_steady(event)
        elif point not in _SILENT:
            self._show(event, t)

    def add_steady(self, event: schema.Event) -> None:
        """Show a step or a sample of memory."""
        t = self._time(event)
        if isinstance(event, schema.Step):
            data = event.data
            args = {"seq": event.seq, "step": data.step, "tokens": data.tokens}
            what = What(_STEP, f"steps of {self._text(event.thread)}", args)
            self._tracks.aside((event.pid, event.tid), t, event.data.seconds * 1e6, what)
        elif isinstance(event, schema.Memory):
            self._tracks.counter(event.pid, t, self._text(name_of(event)), memory_values(event))

    def finish(self) -> None:
        """Close what is still open when the recording ends."""
        self._tracks.close_all(self._end, _OPEN)

    def _header(self, event: schema.Header) -> None:
        self._text = _texts(event.data.home)
        argv = " ".join(event.data.argv[1:]) or "python"
        name = text.shorten(self._text(argv), 120, "events.jsonl")
        self._tracks.process(event.pid, name, next(self._places))

    def _seen(self, thread: Thread, t: float, name: str) -> None:
        """Name a thread; a slice for its life begins when it is first heard of."""
        self._tracks.named(thread, name)
        if thread not in self._alive and thread[0] != thread[1]:  # the process's own has no need
            self._alive[thread] = False
            self._tracks.begin(thread, t, What(_THREAD, name))

    def _thread_start(self, event: schema.ThreadStart, t: float) -> None:
        """An arrow to a thread's life from where it was started, which may be told late."""
        creator, child = (event.pid, event.tid), (event.pid, event.data.child_tid)
        name = self._text(event.data.name)
        began = self._tracks.short(
            creator, t, What("thread_start", f"starts {name}", self._args(event))
        )
        if self._alive.get(child):
            # The system gave the number again, and the end of the one before was not seen.
            self._tracks.close(child, t, _OPEN)
            del self._alive[child]
        self._seen(child, began, name)
        self._alive[child] = True
        self._tracks.arrow("starts", (creator, began), (child, self._tracks.advance(child, began)))

    def _show(self, event: schema.Event, t: float) -> None:
        thread = (event.pid, event.tid)
        what = What(point_of(event), self._text(name_of(event)), self._args(event))
        if event.edge == "exit":
            self._tracks.end(thread, t, what)
            if what.kind == _LOCK:
                self._waiting.pop(thread, None)
        elif event.edge == "enter":
            began = self._tracks.begin(thread, t, what)
            if isinstance(event, schema.LockWait):
                self._wait(event, began)
            elif what.kind == _COMPILE:
                self._awaited(thread, began)
        else:
            self._tracks.mark(thread, t, what)

    def _wait(self, event: schema.LockWait, began: float) -> None:
        """An arrow from the owner's compile to a wait, now or when that compile is seen."""
        if event.data.owner_tid is None:
            return
        waiter, owner = (event.pid, event.tid), (event.pid, event.data.owner_tid)
        compiles = self._tracks.is_open(owner, _COMPILE)
        if compiles is None:
            self._waiting[waiter] = owner
        else:
            at = self._tracks.advance(waiter, max(began, compiles))
            self._tracks.arrow("waits for", (owner, compiles), (waiter, at))

    def _awaited(self, owner: Thread, began: float) -> None:
        for waiter in [waiter for waiter, of in self._waiting.items() if of == owner]:
            del self._waiting[waiter]
            # Its wait may have been closed with what was around it, or with the thread.
            if self._tracks.is_open(waiter, _LOCK) is not None:
                at = self._tracks.advance(waiter, began)
                self._tracks.arrow("waits for", (owner, began), (waiter, at))

    def _time(self, event: schema.Event) -> float:
        if self._t0 is None:
            self._t0 = event.t_ns
        return round(max(event.t_ns - self._t0, 0) / 1e3, 3)

    def _args(self, event: schema.Event) -> dict[str, object]:
        return {
            key: self._text(value) if isinstance(value, str) else value
            for key, value in args_of(event).items()
        }
