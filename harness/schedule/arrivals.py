"""Who came where, and when: the points that the threads of a recorded run really reached."""

import bisect
import string
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from harness.child.schedule.order import EDGES, MAIN, POINTS, Hold
from harness.events import schema
from harness.events.schema import BaseEvent
from harness.schedule.plan import MAX_HOLDS, MAX_THREADS, Plan
from harness.timeline.recording import Recording

_POINTS = frozenset(POINTS)
_WARMUP_DONE = "warmup_done"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A thread came to one edge of a point.

    Attributes:
        thread: ``main``; ``t1``, ``t2`` ... as the program started them; a capital letter for one
            that it did not start (autograd's).
        point, edge: where; an instant counts as ``enter``. Where ``arrivals`` was asked for events
            by their seq, also a point that no hold can name.
        t: nanoseconds.
        after_warmup: once the program had said that its warm-up was over, or else once it had
            started a thread.
        seq: of the event.
        held: a hold of the run's own schedule was passed here, at ``t``.
        implied: no event says so, but what was recorded as an instant ends as well.
    """

    thread: str
    point: str
    edge: str
    t: int
    after_warmup: bool = True
    seq: int = 0
    held: bool = False
    implied: bool = False

    @property
    def place(self) -> tuple[str, str]:
        """Point and edge."""
        return self.point, self.edge

    @property
    def can_be_held(self) -> bool:
        """Whether a hold can name the point."""
        return self.point in _POINTS


@dataclass(slots=True)
class _Raw:
    """An arrival whose thread has no name yet."""

    tid: int
    place: tuple[str, str]
    t: int
    seq: int
    held: bool = False
    implied: bool = False


@dataclass(slots=True)
class _Reader:
    """Reads one process's events: those of the process that the first header is of."""

    implied: bool
    also: frozenset[int] = frozenset()
    pid: int | None = None
    labels: dict[int, str] = field(default_factory=dict)
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    raw: list[_Raw] = field(default_factory=list)
    last: dict[int, _Raw] = field(default_factory=dict)
    passed: dict[int, _Raw] = field(default_factory=dict)
    ends: list[tuple[_Raw, tuple[str, str]]] = field(default_factory=list)
    warm: int | None = None

    def add(self, event: BaseEvent) -> None:
        if self.pid is None and isinstance(event, schema.Header):
            self.pid = event.pid
        if event.pid != self.pid:
            return
        point = str(event.__struct_config__.tag)
        if isinstance(event, schema.ThreadStart):
            self.starts.append((event.data.number, event.t_ns, event.data.child_tid))
        elif isinstance(event, schema.Phase) and event.data.name == _WARMUP_DONE:
            self.warm = event.t_ns if self.warm is None else self.warm
        elif isinstance(event, schema.HoldPass):
            self._passed_hold(event)
        if point in _POINTS:
            edge = event.edge if event.edge in EDGES else "enter"
            self._arrived(_Raw(event.tid, (point, edge), event.t_ns, event.seq))
            if self.implied and edge != event.edge:
                self.ends.append((self.raw[-1], (point, "exit")))
        elif event.seq in self.also:
            self.raw.append(_Raw(event.tid, (point, event.edge), event.t_ns, event.seq))

    def arrivals(self) -> list[Arrival]:
        self.raw += self.passed.values()
        self.raw += [_Raw(of.tid, at, of.t, of.seq, implied=True) for of, at in self.ends]
        self._name_threads()
        first_start = min((t for _, t, _ in self.starts), default=None)
        found = [
            Arrival(
                label,
                *raw.place,
                raw.t,
                after_warmup=self._is_warm(raw, first_start),
                seq=raw.seq,
                held=raw.held,
                implied=raw.implied,
            )
            for raw in self.raw
            if (label := self._label(raw.tid))
        ]
        return sorted(found, key=lambda arrival: (arrival.t, arrival.seq))

    def _is_warm(self, raw: _Raw, first_start: int | None) -> bool:
        if self.warm is not None:
            return raw.t >= self.warm
        return raw.tid != self.pid or (first_start is not None and first_start <= raw.t)

    def _arrived(self, raw: _Raw) -> None:
        passed = self.passed.pop(raw.tid, None)
        if passed is not None and passed.place == raw.place:
            raw.t, raw.held = passed.t, True  # the wait came before the event
        elif passed is not None:
            self.raw.append(passed)
        self.raw.append(raw)
        self.last[raw.tid] = raw

    def _passed_hold(self, event: schema.HoldPass) -> None:
        """A hold was passed: its thread arrived, though perhaps nothing else says so.

        The event of the point itself comes before or after the wait, and may have been left out
        as one of many.
        """
        try:
            hold = Hold.parse(event.data.hold)
        except ValueError:
            return
        last = self.last.get(event.tid)
        if last is not None and last.place == (hold.point, hold.edge) and not last.held:
            last.t, last.held = event.t_ns, True  # it went on only now
            return
        before = self.passed.pop(event.tid, None)
        if before is not None:
            self.raw.append(before)
        place = (hold.point, hold.edge)
        self.passed[event.tid] = _Raw(event.tid, place, event.t_ns, event.seq, held=True)

    def _name_threads(self) -> None:
        if self.pid is not None:
            self.labels[self.pid] = MAIN  # on Linux, the main thread's native id is the process's
        self.starts.sort(key=lambda start: (start[0], start[1]))
        for counted, (number, _, tid) in enumerate(self.starts, 1):
            # Without a number, threads that have nothing to tell are not counted either.
            self.labels.setdefault(tid, f"t{number or counted}")

    def _label(self, tid: int) -> str:
        """What a hold can call a thread; empty for one that all letters are gone for."""
        label = self.labels.get(tid)
        if label is None:
            letters = sum(len(known) == 1 for known in self.labels.values())
            label = string.ascii_uppercase[letters : letters + 1]
            self.labels[tid] = label
        return label


def arrivals(
    recording: Recording, *, implied: bool = False, also: Iterable[int] = ()
) -> list[Arrival]:
    """The arrivals of the main process's threads, in order of time.

    Args:
        recording: a run.
        implied: with the ends of what was recorded as an instant: of calls, say.
        also: with the events that have these seqs, at whatever point they are.

    Raises:
        OSError: the folder cannot be read.
    """
    reader = _Reader(implied, frozenset(also))
    for event in recording.events():
        reader.add(event)
    return reader.arrivals()


class Places:
    """Arrivals, thread by thread, and holds for a choice of them."""

    def __init__(self, found: Iterable[Arrival]) -> None:
        self._of: dict[str, list[Arrival]] = {}
        for arrival in found:
            self._of.setdefault(arrival.thread, []).append(arrival)

    @property
    def threads(self) -> list[str]:
        """The threads, in order of their first arrival after warm-up."""
        first = {
            thread: next((a.t for a in own if a.after_warmup), None)
            for thread, own in self._of.items()
        }
        known = [(t, thread) for thread, t in first.items() if t is not None]
        return [thread for _, thread in sorted(known)]

    def of(self, thread: str) -> Sequence[Arrival]:
        """A thread's arrivals, in order."""
        return self._of.get(thread, ())

    def span_end(self, arrival: Arrival) -> Arrival | None:
        """The exit that belongs to an enter; None if there is none."""
        own = self._of[arrival.thread]
        depth = 0
        for later in own[self._index(arrival) + 1 :]:
            if later.point != arrival.point:
                continue
            if later.edge == "enter":
                depth += 1
            elif depth:
                depth -= 1
            else:
                return later
        return None

    def holds(self, picked: Iterable[Arrival]) -> tuple[Hold, ...]:
        """Holds for arrivals; each thread's in its own order, ``nth`` counted as it will be."""
        found: list[Hold] = []
        last: dict[str, int] = {}
        for arrival in picked:
            index = self._index(arrival)
            before = self._of[arrival.thread][last.get(arrival.thread, -1) + 1 : index + 1]
            nth = sum(one.place == arrival.place for one in before)
            found.append(Hold(arrival.thread, arrival.point, arrival.edge, nth))
            last[arrival.thread] = index
        return tuple(found)

    def plan(self, picked: Iterable[Arrival]) -> Plan | None:
        """A plan for arrivals in order of time.

        None if they make no thread wait for another, or are too many for a plan.
        """
        kept = collapse(sorted(picked, key=lambda arrival: (arrival.t, arrival.seq)))
        threads = {arrival.thread for arrival in kept}
        if len(kept) > MAX_HOLDS or not 2 <= len(threads) <= MAX_THREADS:
            return None
        return Plan(self.holds(kept))

    def _index(self, arrival: Arrival) -> int:
        own = self._of[arrival.thread]
        at = bisect.bisect_left(own, (arrival.t, arrival.seq), key=lambda a: (a.t, a.seq))
        while own[at] != arrival:
            at += 1
        return at


def collapse(picked: Sequence[Arrival]) -> list[Arrival]:
    """Leave out what makes nobody wait.

    Of one thread's arrivals in a row the first waits for those before and the last is waited for by
    those after; at the beginning nothing is before, at the end nothing after.
    """
    runs = list(_runs(picked))
    kept: list[Arrival] = []
    for number, run in enumerate(runs):
        first = [] if number == 0 else run[:1]
        last = [] if number == len(runs) - 1 else run[-1:]
        kept += list(dict.fromkeys([*first, *last]))
    return kept


def after_warmup(found: Iterable[Arrival]) -> Iterator[Arrival]:
    """The arrivals after warm-up."""
    return (arrival for arrival in found if arrival.after_warmup)


def _runs(picked: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    run: list[Arrival] = []
    for arrival in picked:
        if run and run[-1].thread != arrival.thread:
            yield run
            run = []
        run.append(arrival)
    if run:
        yield run
