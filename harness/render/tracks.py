"""Tracks of a Chrome trace: slices that nest, and arrows between them, one event at a time.

The format is Google's "Trace Event Format"; what ui.perfetto.dev makes of it is in its
``json_trace_parser``. Times are microseconds. Slices of one thread must nest: one that is still
open when an outer one ends is closed with it, and a clock that goes back stands still instead.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Put = Callable[[dict[str, Any]], None]

Args = Mapping[str, object]

Thread = tuple[int, int]
"""A process id and a native thread id."""

SHORT_US = 1.0
"""Length of a slice that stands for an instant, since an arrow needs a slice to begin at."""

_CUT: Args = {"cut": "its end was not seen"}


@dataclass(frozen=True, slots=True)
class What:
    """What a slice or an instant is: its kind (to be closed by), its name, what is told of it."""

    kind: str
    name: str = ""
    args: Args = field(default_factory=dict)


@dataclass(slots=True)
class Slice:
    """An open slice: what it is (to be closed by) and when it began."""

    kind: str
    began: float


@dataclass(slots=True)
class Track:
    """One thread: the latest time on it and what is open, the outermost first."""

    name: str
    latest: float = 0.0
    open: list[Slice] = field(default_factory=list)


class Tracks:
    """Writes trace events for threads.

    Args:
        put: takes each trace event.
    """

    def __init__(self, put: Put) -> None:
        self._put = put
        self._tracks: dict[Thread, Track] = {}
        self._aside: dict[Thread, float] = {}
        self._flows = 0

    def named(self, thread: Thread, name: str) -> None:
        """Give a thread its name from now on; it must have one before anything else."""
        track = self._tracks.get(thread)
        if track is None or track.name != name:
            self._metadata("thread_name", thread, {"name": name})
            track = track or self._tracks.setdefault(thread, Track(name))
            track.name = name

    def process(self, pid: int, name: str, place: int) -> None:
        """Name a process and give it its place from the top."""
        self._metadata("process_name", (pid, pid), {"name": name})
        self._metadata("process_sort_index", (pid, pid), {"sort_index": place})

    def begin(self, thread: Thread, t: float, what: What) -> float:
        """Open a slice; returns when it begins."""
        t = self.advance(thread, t)
        self._tracks[thread].open.append(Slice(what.kind, t))
        self._put(_event("B", thread, t, what))
        return t

    def end(self, thread: Thread, t: float, what: What) -> None:
        """Close the innermost open slice of a kind, and what is open inside it."""
        track = self._tracks[thread]
        if any(each.kind == what.kind for each in track.open):
            t = self.advance(thread, t)
            while (closed := track.open.pop()).kind != what.kind:
                self._put(_event("E", thread, t, What(closed.kind, args=_CUT)))
            self._put(_event("E", thread, t, What(what.kind, args=what.args)))

    def mark(self, thread: Thread, t: float, what: What) -> None:
        """An instant on a thread."""
        t = self.advance(thread, t)
        self._put(_event("i", thread, t, what) | {"s": "t"})

    def short(self, thread: Thread, t: float, what: What) -> float:
        """An instant as a slice of a microsecond, for an arrow; returns when it begins."""
        t = self.advance(thread, t)
        self._put(_event("X", thread, t, what) | {"dur": SHORT_US})
        self.advance(thread, t + SHORT_US)
        return t

    def aside(self, thread: Thread, t: float, length: float, what: What) -> None:
        """A slice that is known only once it is over, on a track of its own beside the thread's."""
        began = max(t - length, self._aside.get(thread, 0.0))
        self._aside[thread] = ended = max(t, began)
        own = {"id2": {"local": f"{what.kind} {thread[1]}"}}
        self._put(_event("b", thread, began, what) | own)
        self._put(_event("e", thread, ended, What(what.kind, what.name)) | own)

    def counter(self, pid: int, t: float, name: str, values: Mapping[str, float]) -> None:
        """Values of a process at a time."""
        self._put(_event("C", (pid, 0), t, What("memory", name, values)))

    def is_open(self, thread: Thread, kind: str) -> float | None:
        """When the innermost open slice of a kind began; None if none is open."""
        track = self._tracks.get(thread)
        if track is None:
            return None
        return next((each.began for each in reversed(track.open) if each.kind == kind), None)

    def arrow(self, name: str, source: tuple[Thread, float], target: tuple[Thread, float]) -> None:
        """An arrow between the slices that are open on two threads at the times given."""
        self._flows += 1
        what = What("flow", name)
        self._put(_event("s", *source, what) | {"id": self._flows})
        self._put(_event("f", *target, what) | {"id": self._flows, "bp": "e"})

    def close(self, thread: Thread, t: float, args: Args) -> None:
        """Close everything that is open on a thread."""
        track = self._tracks.get(thread)
        if track is not None and track.open:
            t = self.advance(thread, t)
            while track.open:
                self._put(_event("E", thread, t, What(track.open.pop().kind, args=args)))

    def close_all(self, t: float, args: Args) -> None:
        """Close everything that is open on any thread."""
        for thread in self._tracks:
            self.close(thread, t, args)

    def advance(self, thread: Thread, t: float) -> float:
        """The thread's latest time, ``t`` included: nothing on it comes before that from now on."""
        track = self._tracks[thread]
        track.latest = max(track.latest, t)
        return track.latest

    def _metadata(self, kind: str, thread: Thread, args: Args) -> None:
        self._put(_event("M", thread, 0.0, What("__metadata", kind, args)))


def _event(phase: str, thread: Thread, t: float, what: What) -> dict[str, Any]:
    event: dict[str, Any] = {"ph": phase, "pid": thread[0], "tid": thread[1], "ts": t}
    event["cat"] = what.kind
    if what.name:
        event["name"] = what.name
    if what.args:
        event["args"] = dict(what.args)
    return event
